//! Events on pods, as users see them in `kubectl describe pod`. They go through a bounded
//! queue, so that no decision waits; when it is full, events are dropped and counted.
//! [`crate::publisher`] publishes them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc;

/// Events that may wait to be published.
const QUEUE: usize = 4096;

/// A pod, or a node, that an event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRef {
    /// Namespace; a node has none.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
}

impl PodRef {
    /// A node. Its uid is its name, as in the kubelet's own events.
    pub fn node(name: &str) -> Self {
        Self {
            namespace: String::new(),
            name: name.to_owned(),
            uid: name.to_owned(),
        }
    }

    /// The namespace of its events.
    pub(crate) fn event_namespace(&self) -> &str {
        if self.namespace.is_empty() {
            "default"
        } else {
            &self.namespace
        }
    }
}

/// An event to publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventNote {
    /// The pod that it is about.
    pub pod: PodRef,
    /// Whether its type is Warning rather than Normal.
    pub warning: bool,
    /// The reason in CamelCase, such as `Booked`.
    pub reason: &'static str,
    /// The action, such as `Scheduling`.
    pub action: &'static str,
    /// The text, truncated at 1024 bytes.
    pub text: String,
}

/// The sending end of the event queue.
#[derive(Clone, Debug)]
pub struct EventSender {
    note_tx: mpsc::Sender<EventNote>,
    dropped: Arc<AtomicU64>,
}

impl EventSender {
    /// Queues an event without waiting.
    pub fn send(&self, note: EventNote) {
        if self.note_tx.try_send(note).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The number of dropped events.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// A queue and its receiver, which is for [`crate::publisher::publish`].
pub fn queue() -> (EventSender, mpsc::Receiver<EventNote>) {
    let (note_tx, note_rx) = mpsc::channel(QUEUE);
    let dropped = Arc::default();
    (EventSender { note_tx, dropped }, note_rx)
}
