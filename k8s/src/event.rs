//! Events on pods: what users read in `kubectl describe pod`.
//!
//! Fed by: decisions, through a bounded queue; one task publishes.
//! Must not: hold up a decision; when the queue is full the event is dropped
//! and counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// An event's note may have 1024 bytes (events.k8s.io/v1).
const MAX_NOTE: usize = 1024;
/// Events waiting to be published.
const QUEUE: usize = 1024;
/// Longest wait for one publication.
const DEADLINE: Duration = Duration::from_secs(5);

/// A pod as events refer to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRef {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
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

/// A queue and what reads it; the reader is given to [`publish`].
pub fn queue() -> (Notes, mpsc::Receiver<Note>) {
    let (note_tx, note_rx) = mpsc::channel(QUEUE);
    let dropped = Arc::default();
    (Notes { note_tx, dropped }, note_rx)
}

/// Publishes notes one after the other until `stop`. A repeated note becomes a
/// series of the first one, as kube-scheduler's own events do.
pub async fn publish(
    client: Client,
    controller: &str,
    mut note_rx: mpsc::Receiver<Note>,
    stop: CancellationToken,
) {
    let recorder = Recorder::new(client, Reporter::from(controller.to_owned()));
    loop {
        let note = tokio::select! {
            () = stop.cancelled() => return,
            note = note_rx.recv() => note,
        };
        let Some(note) = note else { return };
        let event = Event {
            type_: if note.warning {
                EventType::Warning
            } else {
                EventType::Normal
            },
            reason: note.reason.to_owned(),
            note: Some(cut(note.text)),
            action: note.action.to_owned(),
            secondary: None,
        };
        let pod = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(note.pod.namespace),
            name: Some(note.pod.name),
            uid: Some(note.pod.uid),
            ..ObjectReference::default()
        };
        let published = tokio::time::timeout(DEADLINE, recorder.publish(&event, &pod)).await;
        let failure = match published {
            Ok(Ok(())) => continue,
            Ok(Err(error)) => error.to_string(),
            Err(elapsed) => elapsed.to_string(),
        };
        tracing::warn!(pod = ?pod.name, error = failure, "event not published");
    }
}

fn cut(mut text: String) -> String {
    if text.len() > MAX_NOTE {
        let mut end = MAX_NOTE - '…'.len_utf8();
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_note_is_cut_within_the_limit_and_between_characters() {
        assert_eq!(cut("short".to_owned()), "short");
        let long = cut("ü".repeat(2000));
        assert!(
            long.len() <= MAX_NOTE && long.ends_with('…'),
            "{}",
            long.len()
        );
    }
}
