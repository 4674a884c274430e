//! The bound pods whose resize is under way ([`aliquot_core::resize`]).

use std::collections::HashMap;
use std::sync::Arc;

use aliquot_core::allocation::CodecError;
use aliquot_core::resize::{RESIZE, RESIZE_STATUS, ResizeStatus};
use aliquot_core::{Excerpt, NodeName, PodUid};
use aliquot_k8s::event::PodRef;
use aliquot_k8s::view::PodView;
use tokio::sync::Notify;

/// Longest request in bytes. Of a longer one, the excerpt is read, which asks for nothing.
const MAX_REQUEST: usize = 4 << 10;

/// What a bound pod's annotations say of its resize.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedResize {
    pub pod: PodRef,
    pub node: NodeName,
    /// What is asked for.
    pub request: Option<String>,
    /// How far that is.
    pub status: Option<ResizeStatus>,
}

impl ObservedResize {
    /// Reads a pod that is bound to `node`; `None` if it never had a resize.
    pub fn read(pod: &PodView, node: &NodeName) -> Result<Option<Self>, CodecError> {
        let request = pod.annotation(RESIZE);
        let status = pod.annotation(RESIZE_STATUS);
        if request.is_none() && status.is_none() {
            return Ok(None);
        }
        Ok(Some(Self {
            pod: pod.reference(),
            node: node.clone(),
            request: request.map(|text| match text.len() {
                0..=MAX_REQUEST => text.to_owned(),
                _ => Excerpt::from(text).to_string(),
            }),
            status: status.map(ResizeStatus::decode).transpose()?,
        }))
    }

    /// The number of the last one; 0: there was none.
    pub fn generation(&self) -> u64 {
        self.status.as_ref().map_or(0, |status| status.generation)
    }

    /// The request is not answered, or the node has still to enforce the answer.
    fn is_open(&self) -> bool {
        let answered = |request: &String| {
            let status = self.status.as_ref();
            status.is_some_and(|status| status.request == *request)
        };
        let pending = self
            .status
            .as_ref()
            .is_some_and(|status| status.pending.is_some());
        pending || !self.request.as_ref().is_none_or(answered)
    }
}

/// Those that are under way.
#[derive(Debug, Default)]
pub(crate) struct Resizes {
    open: HashMap<PodUid, ObservedResize>,
    /// Notified when one was added or changed.
    pub(super) changed: Arc<Notify>,
}

impl Resizes {
    /// Sets what the watch shows of a pod; `None` for one without a resize, or not bound.
    pub(super) fn put(&mut self, uid: &PodUid, observed: Option<ObservedResize>) {
        let Some(observed) = observed.filter(ObservedResize::is_open) else {
            self.open.remove(uid);
            return;
        };
        if self.open.get(uid) != Some(&observed) {
            self.open.insert(uid.clone(), observed);
            self.changed.notify_one();
        }
    }

    pub(super) fn retain(&mut self, listed: impl Fn(&PodUid) -> bool) {
        self.open.retain(|uid, _| listed(uid));
    }

    pub(crate) fn all(&self) -> Vec<(PodUid, ObservedResize)> {
        let open = self.open.iter();
        open.map(|(uid, one)| (uid.clone(), one.clone())).collect()
    }
}
