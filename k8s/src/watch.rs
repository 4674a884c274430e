//! A watch turned into three plain calls: apply, delete, reset.
//!
//! Fed by: kube's watcher (list, watch, list again when the server has
//! forgotten our place). An [`Index`] never sees the stream, so that its tests
//! call it with objects.
//! Must not: hold a lock across an await; an index locks inside its calls.

use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures::StreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Resource};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How often the server ends a watch and we ask again from where it was.
pub const RENEWAL: Duration = Duration::from_mins(1);
/// Pause after an error: doubles from the first to the second.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(3));
/// Errors for this long make a watch stale.
const STALE_AFTER: Duration = Duration::from_secs(6);
/// No further error for this long after one: the watch stands again.
const HEALED_AFTER: Duration = Duration::from_secs(9);

/// What wants to know about the objects of one kind.
pub trait Index<K>: Send + Sync {
    /// What it keeps of an object of a list until the list is complete.
    type Entry: Send;

    /// Reads an object; keeps nothing yet.
    fn entry(&self, object: K) -> Self::Entry;
    /// The object is new or has changed.
    fn apply(&self, object: K);
    /// The object is gone; its last known state.
    fn delete(&self, object: K);
    /// These are all the objects there are: at the first list, and at every
    /// later one. What is not among them is gone.
    fn replace(&self, listed: Vec<Self::Entry>);

    /// Reads and replaces at once.
    fn reset(&self, objects: Vec<K>) {
        let listed = objects.into_iter().map(|object| self.entry(object));
        self.replace(listed.collect());
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// When the list under way was begun.
    listing: Option<SystemTime>,
    /// When the last complete list was begun.
    listed: Option<SystemTime>,
    failing: Option<(Instant, Instant)>,
    /// When anything last came.
    heard: Option<Instant>,
}

/// Whether an index can be believed. Shared between the watch and readiness.
#[derive(Clone, Debug, Default)]
pub struct Freshness {
    state: Arc<Mutex<State>>,
    relist: Arc<Notify>,
}

impl Freshness {
    /// Of a list that was begun then and is complete, with no watch behind it.
    pub fn complete(begun: SystemTime) -> Self {
        let fresh = Self::default();
        fresh.state.lock().listed = Some(begun);
        fresh
    }

    /// `None` when the first list is complete and the watch stands; else why not.
    pub fn fault(&self, now: Instant) -> Option<&'static str> {
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

    /// How long ago anything last came; `None` before the first list.
    pub fn age(&self, now: Instant) -> Option<Duration> {
        let heard = self.state.lock().heard?;
        Some(now.saturating_duration_since(heard))
    }

    /// When the last complete list was begun.
    pub fn listed(&self) -> Option<SystemTime> {
        self.state.lock().listed
    }

    /// Asks for a new list, unless the one under way was begun after `from`.
    pub fn relist(&self, from: SystemTime) {
        if self.state.lock().listing.is_none_or(|begun| begun < from) {
            self.relist.notify_one();
        }
    }

    fn heard(&self, now: Instant) {
        self.state.lock().heard = Some(now);
    }

    fn listing(&self, now: SystemTime) {
        self.state.lock().listing = Some(now);
    }

    fn good(&self, complete: bool) {
        let mut state = self.state.lock();
        if complete {
            state.listed = state.listing.take();
        }
        state.failing = None;
    }

    fn bad(&self, now: Instant) {
        let mut state = self.state.lock();
        let first = match state.failing {
            Some((first, last)) if now - last < HEALED_AFTER => first,
            _ => now,
        };
        state.failing = Some((first, now));
    }
}

/// Feeds `index` with every object that `api` and `config` select, until `stop`.
/// Errors are logged, waited out and tried again. `W` is how an object is read
/// from the wire.
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
                    // A list is about to be asked for: not yet a sign of life.
                    Event::Init => {
                        listed.clear();
                        freshness.listing(SystemTime::now());
                        continue;
                    }
                    Event::InitApply(object) => listed.push(index.entry(object.into())),
                    Event::InitDone => index.replace(std::mem::take(&mut listed)),
                    Event::Apply(object) => index.apply(object.into()),
                    Event::Delete(object) => index.delete(object.into()),
                }
                freshness.heard(Instant::now());
                freshness.good(complete);
                pause = RETRY.0;
            }
            Some(Err(error)) => {
                freshness.bad(Instant::now());
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
    fn an_index_is_believed_after_its_list_and_while_its_watch_stands() {
        let fresh = Freshness::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(fresh.fault(at(0)), Some("still listing"));
        fresh.listing(SystemTime::UNIX_EPOCH);
        assert_eq!(fresh.fault(at(0)), Some("still listing"));
        assert_eq!(fresh.age(at(2)), None);
        fresh.heard(at(0));
        assert_eq!(fresh.age(at(2)), Some(Duration::from_secs(2)));
        fresh.good(true);
        assert_eq!(fresh.listed(), Some(SystemTime::UNIX_EPOCH));
        assert_eq!(fresh.fault(at(0)), None);
        fresh.bad(at(1));
        assert_eq!(fresh.fault(at(1)), None);
        for second in [3, 6, 9] {
            fresh.bad(at(second));
        }
        assert_eq!(fresh.fault(at(10)), Some("watch is stale"));
        // A watch that stands again may have nothing to say for a while.
        assert_eq!(fresh.fault(at(18)), None);
        fresh.bad(at(30));
        assert_eq!(fresh.fault(at(30)), None);
        fresh.good(false);
        assert_eq!(fresh.fault(at(31)), None);
    }
}
