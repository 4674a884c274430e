//! Events on pods: what users read in `kubectl describe pod`.
//!
//! Fed by: decisions, through a bounded queue; [`crate::publisher`] publishes.
//! Must not: hold up a decision; when the queue is full the event is dropped
//! and counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc;

/// Events waiting to be published.
const QUEUE: usize = 4096;

/// A pod, or a node, as events refer to it.
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

    /// The namespace in which its events lie.
    pub(crate) fn events_in(&self) -> &str {
        if self.namespace.is_empty() {
            "default"
        } else {
            &self.namespace
        }
    }
}

/// Something that a user should read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The pod it is about.
    pub pod: PodRef,
    /// A warning, or news.
    pub warning: bool,
    /// One word in capitals-and-small letters, such as `Booked`.
    pub reason: &'static str,
    /// What was being done, such as `Scheduling`.
    pub action: &'static str,
    /// The text; cut at 1024 bytes.
    pub text: String,
}

/// Where decisions put their notes.
#[derive(Clone, Debug)]
pub struct Notes {
    note_tx: mpsc::Sender<Note>,
    dropped: Arc<AtomicU64>,
}

impl Notes {
    /// Queues a note; never waits.
    pub fn send(&self, note: Note) {
        if self.note_tx.try_send(note).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many notes did not find room.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// A queue and what reads it; the reader is given to [`crate::publisher::publish`].
pub fn queue() -> (Notes, mpsc::Receiver<Note>) {
    let (note_tx, note_rx) = mpsc::channel(QUEUE);
    let dropped = Arc::default();
    (Notes { note_tx, dropped }, note_rx)
}
