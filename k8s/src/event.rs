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

    pub(crate) fn event_namespace(&self) -> &str {
        if self.namespace.is_empty() {
            "default"
        } else {
            &self.namespace
        }
    }
}

/// Pods, by namespace and name, in a text for those who may read the pods of namespace `readers`:
/// these by name, and how many others there are. Without `readers`, all by name.
pub fn pods_text<'p>(
    readers: Option<&str>,
    pods: impl IntoIterator<Item = (&'p str, &'p str)>,
) -> String {
    let is_readable = |namespace: &str| readers.is_none_or(|readers| readers == namespace);
    let (readable, others): (Vec<_>, Vec<_>) = pods
        .into_iter()
        .partition(|(namespace, _)| is_readable(namespace));
    let names: Vec<_> = readable
        .iter()
        .map(|(namespace, name)| format!("{namespace}/{name}"))
        .collect();
    let others = match others.len() {
        0 => return names.join(", "),
        1 => "1 pod of another namespace".to_owned(),
        more => format!("{more} pods of other namespaces"),
    };
    if names.is_empty() {
        return others;
    }
    format!("{} and {others}", names.join(", "))
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventNote {
    pub pod: PodRef,
    /// Whether its type is Warning rather than Normal.
    pub warning: bool,
    /// The reason in CamelCase, such as `Allocated`.
    pub reason: &'static str,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_only_pods_that_readers_may_read() {
        let pods = [("d", "a"), ("other", "b"), ("d", "c"), ("third", "e")];
        for (readers, expected) in [
            (None, "d/a, other/b, d/c, third/e"),
            (Some("d"), "d/a, d/c and 2 pods of other namespaces"),
            (Some("other"), "other/b and 3 pods of other namespaces"),
            (Some("x"), "4 pods of other namespaces"),
        ] {
            assert_eq!(pods_text(readers, pods), expected);
        }
        assert_eq!(pods_text(Some("d"), []), "");
    }
}
