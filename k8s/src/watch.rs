//! A watch as plain calls: apply, delete, replace.
//!
//! kube's watcher lists, watches, and lists again when its resource version has expired. An
//! [`Index`] never sees the stream, so that tests call it with objects; it takes locks only
//! inside its calls.

use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Resource};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How often the server ends a watch, which is then resumed.
pub const RENEWAL: Duration = Duration::from_mins(1);
/// Pause after an error: doubles from the first to the second.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(3));
/// Errors for this long make a watch stale.
const STALE_AFTER: Duration = Duration::from_secs(6);
/// Without a further error for this long, the watch is healthy again.
const HEALED_AFTER: Duration = Duration::from_secs(9);

/// An index of the objects of one kind.
pub trait Index<K>: Send + Sync {
    /// What is stored of a listed object until the list is complete.
    type Entry: Send;

    /// Reads an object without storing it.
    fn entry(&self, object: K) -> Self::Entry;
    /// The object is new or has changed.
    fn apply(&self, object: K);
    /// The object is gone; this is its last known state.
    fn delete(&self, object: K);
    /// These are all objects: after the first list and every later one. Others are gone.
    fn replace(&self, listed: Vec<Self::Entry>);

    /// Reads and replaces at once.
    fn reset(&self, objects: Vec<K>) {
        let listed = objects.into_iter().map(|object| self.entry(object));
        self.replace(listed.collect());
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// When the present list began.
    listing: Option<Instant>,
    /// When the last complete list began.
    listed: Option<Instant>,
    failing: Option<(Instant, Instant)>,
    /// When the last message was received.
    last_received: Option<Instant>,
}

/// Whether an index is up to date. Shared between the watch and readiness.
#[derive(Clone, Debug, Default)]
pub struct Freshness {
    state: Arc<Mutex<State>>,
    relist: Arc<Notify>,
}

impl Freshness {
    /// For a complete list that began then, without a watch.
    pub fn complete(begun: Instant) -> Self {
        let fresh = Self::default();
        fresh.state.lock().listed = Some(begun);
        fresh
    }

    /// Why the index is not up to date; `None` once the first list is complete and while
    /// the watch is healthy.
    pub fn error(&self, now: Instant) -> Option<&'static str> {
        let state = *self.state.lock();
        match state {
            State { listed: None, .. } => Some("still listing"),
            State {
                failing: Some((first, last)),
                ..
            } if last - first >= STALE_AFTER && now - last < HEALED_AFTER => Some("watch is stale"),
            State { .. } => None,
        }
    }

    /// How long ago the last message was received; `None` before the first list.
    pub fn age(&self, now: Instant) -> Option<Duration> {
        let received = self.state.lock().last_received?;
        Some(now.saturating_duration_since(received))
    }

    /// When the last complete list began.
    pub fn listed(&self) -> Option<Instant> {
        self.state.lock().listed
    }

    /// Requests a new list, unless one is under way that began after `from`.
    pub fn relist(&self, from: Instant) {
        if self.state.lock().listing.is_none_or(|begun| begun < from) {
            self.relist.notify_one();
        }
    }

    fn record_message(&self, now: Instant) {
        self.state.lock().last_received = Some(now);
    }

    fn listing(&self, now: Instant) {
        self.state.lock().listing = Some(now);
    }

    fn record_success(&self, complete: bool) {
        let mut state = self.state.lock();
        if complete {
            state.listed = state.listing.take();
        }
        state.failing = None;
    }

    fn record_failure(&self, now: Instant) {
        let mut state = self.state.lock();
        let first = match state.failing {
            Some((first, last)) if now - last < HEALED_AFTER => first,
            _ => now,
        };
        state.failing = Some((first, now));
    }
}

/// Feeds `index` with every object that `api` and `config` select, read as `W`, until `stop`. Errors
/// are logged and retried after a pause.
pub async fn drive<W, K>(
    api: Api<W>,
    config: watcher::Config,
    index: Arc<impl Index<K>>,
    freshness: Freshness,
    stop: CancellationToken,
) where
    W: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Into<K> + 'static,
{
    let seconds = u32::try_from(RENEWAL.as_secs()).unwrap_or(u32::MAX);
    let config = config.timeout(seconds);
    let mut stream = pin!(watcher::watcher(api.clone(), config.clone()));
    let mut listed = Vec::new();
    let mut pause = RETRY.0;
    loop {
        let event = tokio::select! {
            () = stop.cancelled() => return,
            () = freshness.relist.notified() => {
                stream.set(watcher::watcher(api.clone(), config.clone()));
                continue;
            }
            event = stream.next() => event,
        };
        match event {
            None => return,
            Some(Ok(event)) => {
                let complete = matches!(event, Event::InitDone);
                match event {
                    // A list is about to be requested: no sign of life yet.
                    Event::Init => {
                        listed.clear();
                        freshness.listing(Instant::now());
                        continue;
                    }
                    Event::InitApply(object) => listed.push(index.entry(object.into())),
                    Event::InitDone => index.replace(std::mem::take(&mut listed)),
                    Event::Apply(object) => index.apply(object.into()),
                    Event::Delete(object) => index.delete(object.into()),
                }
                freshness.record_message(Instant::now());
                freshness.record_success(complete);
                pause = RETRY.0;
            }
            Some(Err(error)) => {
                freshness.record_failure(Instant::now());
                tracing::warn!(kind = %W::kind(&()), error = %error, "watch failed, trying again");
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(pause) => {}
                }
                pause = (pause * 2).min(RETRY.1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_is_fresh_after_its_list_while_its_watch_lives() {
        let fresh = Freshness::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(fresh.error(at(0)), Some("still listing"));
        fresh.listing(start);
        assert_eq!(fresh.error(at(0)), Some("still listing"));
        assert_eq!(fresh.age(at(2)), None);
        fresh.record_message(at(0));
        assert_eq!(fresh.age(at(2)), Some(Duration::from_secs(2)));
        fresh.record_success(true);
        assert_eq!(fresh.listed(), Some(start));
        assert_eq!(fresh.error(at(0)), None);
        fresh.record_failure(at(1));
        assert_eq!(fresh.error(at(1)), None);
        for second in [3, 6, 9] {
            fresh.record_failure(at(second));
        }
        assert_eq!(fresh.error(at(10)), Some("watch is stale"));
        // A healthy watch may be silent for a while.
        assert_eq!(fresh.error(at(18)), None);
        fresh.record_failure(at(30));
        assert_eq!(fresh.error(at(30)), None);
        fresh.record_success(false);
        assert_eq!(fresh.error(at(31)), None);
    }
}
