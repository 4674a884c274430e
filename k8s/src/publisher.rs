//! Writes events to the API server, several at a time. kube's `Recorder` does not fit: it keeps the
//! first text of a reason, and each of its events looks through all that it remembers.
//!
//! A repeated text becomes a series of the first event, as kube-scheduler's own events do;
//! another text is an event of its own, so that users see the newest reasons. Published
//! events are remembered for some minutes and swept once a minute, so that an event costs
//! the same at any rate. Events about one pod are written in order.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::event::EventNote;

/// An event's note may have 1024 bytes (events.k8s.io/v1).
const MAX_NOTE: usize = 1024;
/// An event's name may have 253 bytes, as many as its pod's.
const MAX_NAME: usize = 253;
/// Events written at a time.
const WRITERS: u64 = 4;
/// Events that may wait for one writer.
const QUEUE: usize = 64;
/// The longest time for one publication.
const DEADLINE: Duration = Duration::from_secs(5);
/// After this a published event is forgotten; a repetition is then a new event.
const RETENTION: Duration = Duration::from_mins(6);
const SWEEP: Duration = Duration::from_mins(1);

/// Publishes events until `stop`, those about one pod in order.
pub async fn publish(
    client: Client,
    controller: &'static str,
    mut note_rx: mpsc::Receiver<EventNote>,
    stop: CancellationToken,
) {
    let tasks = TaskTracker::new();
    let writer = |_| {
        let (writer_tx, writer_rx) = mpsc::channel(QUEUE);
        let writer = Writer::new(client.clone(), controller);
        tasks.spawn(writer.run(writer_rx, stop.clone()));
        writer_tx
    };
    let writers: Vec<_> = (0..WRITERS).map(writer).collect();
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    loop {
        let note = tokio::select! {
            () = stop.cancelled() => break,
            note = note_rx.recv() => note,
        };
        let Some(note) = note else { break };
        let place = hasher.hash_one(&note.pod.uid) % WRITERS;
        let writer = usize::try_from(place)
            .ok()
            .and_then(|place| writers.get(place));
        // A writer ends with `stop` only.
        if let Some(writer) = writer
            && writer.send(note).await.is_err()
        {
            break;
        }
    }
    drop(writers);
    tasks.close();
    tasks.wait().await;
}

struct Published {
    name: String,
    text: String,
    count: u32,
    last: Instant,
}

struct Writer {
    client: Client,
    controller: &'static str,
    /// By the uid of the pod and the reason.
    published: HashMap<(String, &'static str), Published>,
    last_sweep: Instant,
}

impl Writer {
    fn new(client: Client, controller: &'static str) -> Self {
        Self {
            client,
            controller,
            published: HashMap::new(),
            last_sweep: Instant::now(),
        }
    }

    async fn run(mut self, mut note_rx: mpsc::Receiver<EventNote>, stop: CancellationToken) {
        loop {
            let note = tokio::select! {
                () = stop.cancelled() => return,
                note = note_rx.recv() => note,
            };
            let Some(note) = note else { return };
            let name = note.pod.name.clone();
            let failure = match timeout(DEADLINE, self.write(note)).await {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => error.to_string(),
                Err(elapsed) => elapsed.to_string(),
            };
            tracing::warn!(pod = name, error = failure, "event not published");
        }
    }

    async fn write(&mut self, mut note: EventNote) -> Result<(), kube::Error> {
        note.text = truncated(note.text);
        let now = Instant::now();
        if now - self.last_sweep > SWEEP {
            self.published
                .retain(|_, event| now - event.last < RETENTION);
            self.last_sweep = now;
        }
        let events: Api<Event> = Api::namespaced(self.client.clone(), note.pod.event_namespace());
        let key = (note.pod.uid.clone(), note.reason);
        let known = self.published.get_mut(&key);
        if let Some(known) = known.filter(|known| known.text == note.text) {
            known.count += 1;
            known.last = now;
            let series = json!({"series": {"count": known.count, "lastObservedTime": time()}});
            let answer = events
                .patch(&known.name, &PatchParams::default(), &Patch::Merge(series))
                .await
                .map(drop);
            // It has expired, or somebody deleted it.
            if !matches!(&answer, Err(kube::Error::Api(status)) if status.code == 404) {
                return answer;
            }
        }
        let name = event_name(&note.pod.name);
        let event = new_event(self.controller, &note, &name);
        events.create(&PostParams::default(), &event).await?;
        let published = Published {
            name,
            text: note.text,
            count: 1,
            last: now,
        };
        self.published.insert(key, published);
        Ok(())
    }
}

fn time() -> MicroTime {
    MicroTime(Timestamp::now())
}

/// A name of its own for an event, with the pod's name or its beginning.
fn event_name(pod: &str) -> String {
    let end = format!(".{:x}", Timestamp::now().as_nanosecond());
    let start = pod.get(..MAX_NAME - end.len()).unwrap_or(pod);
    format!("{}{end}", start.trim_end_matches(['-', '.']))
}

fn new_event(controller: &str, note: &EventNote, name: &str) -> Event {
    let pod = &note.pod;
    let kind = if pod.namespace.is_empty() {
        "Node"
    } else {
        "Pod"
    };
    let event_type = if note.warning { "Warning" } else { "Normal" };
    Event {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(pod.event_namespace().to_owned()),
            ..ObjectMeta::default()
        },
        event_time: Some(time()),
        type_: Some(event_type.to_owned()),
        reason: Some(note.reason.to_owned()),
        action: Some(note.action.to_owned()),
        note: Some(note.text.clone()),
        regarding: Some(ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some(kind.to_owned()),
            namespace: Some(pod.namespace.clone()),
            name: Some(pod.name.clone()),
            uid: Some(pod.uid.clone()),
            ..ObjectReference::default()
        }),
        reporting_controller: Some(controller.to_owned()),
        reporting_instance: Some(controller.to_owned()),
        ..Event::default()
    }
}

fn truncated(mut text: String) -> String {
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
#[path = "publisher_tests.rs"]
mod tests;
