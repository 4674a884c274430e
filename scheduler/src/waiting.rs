//! A pod that waits for its shares, as the books keep it.
//!
//! Fed by: the pod watch, and filter where kube-scheduler's watch was ahead.
//! Must not: say whether it fits.

use aliquot_core::Demand;
use aliquot_k8s::event::PodRef;
use k8s_openapi::api::core::v1::Pod;

/// A pod that asks for a share and is not bound.
#[derive(Clone, Debug)]
pub struct Waiting {
    /// Which pod.
    pub pod: PodRef,
    /// What it asks for.
    pub demand: Demand,
    /// `spec.priority`.
    pub priority: i32,
    /// Bytes of its annotations, keys and values.
    pub annotation_bytes: usize,
    /// Filter refused it and nothing has woken it since.
    pub refused: bool,
}

/// A pod's entry among those that wait.
pub fn waiting(pod: &Pod, demand: Demand, refused: bool) -> Waiting {
    let annotations = pod.metadata.annotations.iter().flatten();
    Waiting {
        pod: reference(pod),
        demand,
        priority: pod
            .spec
            .as_ref()
            .and_then(|spec| spec.priority)
            .unwrap_or(0),
        annotation_bytes: annotations
            .map(|(key, value)| key.len() + value.len())
            .sum(),
        refused,
    }
}

/// The pod as events name it.
pub fn reference(pod: &Pod) -> PodRef {
    PodRef {
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        name: pod.metadata.name.clone().unwrap_or_default(),
        uid: pod.metadata.uid.clone().unwrap_or_default(),
    }
}
