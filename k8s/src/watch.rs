//! A watch as plain calls: apply, delete, replace.
//!
//! [`drive`] lists, watches, and lists again when its resource version has expired. So does kube's
//! watcher, but it reads one page after the other. An [`Index`] never sees the stream, so that
//! tests call it with objects; it takes locks only inside its calls.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt};
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::runtime::watcher::Error;
use kube::{Api, Resource};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::list::list;

/// How often the server ends a watch, which is then resumed.
pub const RENEWAL: Duration = Duration::from_mins(1);
/// A watch that is silent for this long has lost its server.
const SILENCE: Duration = RENEWAL.saturating_add(Duration::from_secs(5));
/// Objects on a page of a list.
const PAGE: u32 = 500;
/// Pause after an error: doubles from the first to the second.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(3));
/// Errors for this long make a watch stale.
const STALE_AFTER: Duration = Duration::from_secs(6);
/// Without a further error for this long, the watch is healthy again.
const HEALED_AFTER: Duration = Duration::from_secs(9);

/// An index of the objects of one kind.
pub trait Index<K>: Send + Sync {
    /// What is stored of a listed object until the list is complete.
    type Entry: Send + 'static;

    /// Reads an object without storing it. Several threads may, while a list is under way.
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

/// Feeds `index` with every object that `api` and the field selector select, read as `W`, until
/// `stop`. Errors are logged and retried after a pause.
pub async fn drive<W, K>(
    api: Api<W>,
    fields: Option<String>,
    index: Arc<impl Index<K> + 'static>,
    freshness: Freshness,
    stop: CancellationToken,
) where
    W: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Into<K> + 'static,
    K: 'static,
{
    let mut feed = Feed::new(api, fields);
    let mut pause = RETRY.0;
    loop {
        let followed = tokio::select! {
            () = stop.cancelled() => return,
            () = freshness.relist.notified() => {
                feed.version = None;
                continue;
            }
            followed = feed.follow::<K>(&index, &freshness) => followed,
        };
        match followed {
            Ok(()) => pause = RETRY.0,
            Err(error) => {
                freshness.record_failure(Instant::now());
                if is_expired(&error) {
                    feed.version = None;
                }
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

/// A list, and the watch that continues it.
struct Feed<W> {
    api: Api<W>,
    list: ListParams,
    watch: WatchParams,
    /// The version that the index is at; `None` until a list is complete.
    version: Option<String>,
    /// Ended where no watch is open.
    events: BoxStream<'static, kube::Result<WatchEvent<W>>>,
    /// When the last watch was requested.
    opened: Option<Instant>,
}

impl<W> Feed<W>
where
    W: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    fn new(api: Api<W>, fields: Option<String>) -> Self {
        let list = ListParams {
            field_selector: fields.clone(),
            limit: Some(PAGE),
            ..ListParams::default()
        };
        let watch = WatchParams {
            field_selector: fields,
            timeout: u32::try_from(RENEWAL.as_secs()).ok(),
            ..WatchParams::default()
        };
        Self {
            api,
            list,
            watch,
            version: None,
            events: stream::empty().boxed(),
            opened: None,
        }
    }

    /// Lists all objects, or waits for the next change of one. After an error, the next call goes
    /// on from there.
    async fn follow<K>(
        &mut self,
        index: &Arc<impl Index<K> + 'static>,
        freshness: &Freshness,
    ) -> Result<(), Error>
    where
        W: Into<K>,
        K: 'static,
    {
        let received = |complete| {
            freshness.record_message(Instant::now());
            freshness.record_success(complete);
        };
        let Some(version) = &mut self.version else {
            self.events = stream::empty().boxed();
            // A list is about to be requested: no sign of life yet.
            freshness.listing(Instant::now());
            let reader = index.clone();
            let read = move |object: W| reader.entry(object.into());
            let listing = list(&self.api, self.list.clone(), read, || received(false));
            let (listed, version) = listing.await.map_err(Error::InitialListFailed)?;
            let version = version.filter(|version| !version.is_empty());
            self.version = Some(version.ok_or(Error::NoResourceVersion)?);
            index.replace(listed);
            received(true);
            return Ok(());
        };
        loop {
            let event = tokio::time::timeout(SILENCE, self.events.next()).await;
            let Some(event) = event.ok().flatten() else {
                self.events = stream::empty().boxed();
                // A server may end each watch at once.
                if let Some(opened) = self.opened {
                    tokio::time::sleep_until(opened + RETRY.0).await;
                }
                self.opened = Some(Instant::now());
                let events = self.api.watch(&self.watch, version).await;
                self.events = events.map_err(Error::WatchStartFailed)?.boxed();
                continue;
            };
            let (object, is_gone) = match event.map_err(Error::WatchFailed)? {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, false),
                WatchEvent::Deleted(object) => (object, true),
                WatchEvent::Bookmark(mark) => {
                    *version = mark.metadata.resource_version;
                    continue;
                }
                WatchEvent::Error(status) => return Err(Error::WatchError(status)),
            };
            let shown = object.meta().resource_version.clone();
            let Some(shown) = shown.filter(|version| !version.is_empty()) else {
                self.version = None;
                return Err(Error::NoResourceVersion);
            };
            *version = shown;
            if is_gone {
                index.delete(object.into());
            } else {
                index.apply(object.into());
            }
            received(false);
            return Ok(());
        }
    }
}

/// The version is too old, in whichever way the server says so: only a list helps.
fn is_expired(error: &Error) -> bool {
    match error {
        Error::WatchError(status)
        | Error::WatchStartFailed(kube::Error::Api(status))
        | Error::WatchFailed(kube::Error::Api(status)) => status.code == 410,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use http::{Response, StatusCode};
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::Client;
    use kube::client::Body;
    use serde_json::{Value, json};
    use tower_test::mock;

    use super::*;

    #[derive(Default)]
    struct Calls(Mutex<Vec<String>>);

    impl Index<ConfigMap> for Calls {
        type Entry = String;

        fn entry(&self, object: ConfigMap) -> String {
            object.metadata.name.unwrap_or_default()
        }

        fn apply(&self, object: ConfigMap) {
            let name = self.entry(object);
            self.0.lock().push(format!("apply {name}"));
        }

        fn delete(&self, object: ConfigMap) {
            let name = self.entry(object);
            self.0.lock().push(format!("delete {name}"));
        }

        fn replace(&self, listed: Vec<String>) {
            self.0.lock().push(format!("replace {}", listed.join(" ")));
        }
    }

    #[tokio::test]
    async fn watch_resumes_and_lists_again_when_its_version_has_expired() {
        let (service, mut server) = mock::pair::<http::Request<Body>, Response<Body>>();
        let api: Api<ConfigMap> = Api::all(Client::new(service, "d"));
        let calls = Arc::new(Calls::default());
        let stop = CancellationToken::new();
        let fresh = Freshness::default();
        let driven = drive::<ConfigMap, ConfigMap>(api, None, calls.clone(), fresh, stop.clone());
        let driven = tokio::spawn(driven);
        let object = |name: &str, version: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "resourceVersion": version}});
        let line = |kind: &str, object: Value| {
            let event = json!({"type": kind, "object": object});
            format!("{event}\n")
        };
        let list = json!({"metadata": {"resourceVersion": "7"}, "items": [object("a", "5")]});
        let changes = [
            line("ADDED", object("b", "8")),
            line("DELETED", object("a", "9")),
            line("BOOKMARK", object("", "10")),
        ];
        let status = json!({"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired", "message": "too old"});
        for (asked, code, answer) in [
            ("limit=500", StatusCode::OK, list.to_string()),
            ("resourceVersion=7", StatusCode::OK, changes.concat()),
            (
                "resourceVersion=10",
                StatusCode::OK,
                line("ERROR", status.clone()),
            ),
            ("limit=500", StatusCode::OK, list.to_string()),
            ("resourceVersion=7", StatusCode::GONE, status.to_string()),
            ("limit=500", StatusCode::OK, list.to_string()),
        ] {
            let (request, answered) = server.next_request().await.unwrap();
            let query = request.uri().query().unwrap_or_default();
            assert!(query.ends_with(asked), "{query}");
            let mut answer = Response::new(Body::from(answer.into_bytes()));
            *answer.status_mut() = code;
            answered.send_response(answer);
        }
        let _watching = server.next_request().await.unwrap();
        stop.cancel();
        driven.await.unwrap();
        let expected = ["replace a", "apply b", "delete a", "replace a", "replace a"];
        assert_eq!(*calls.0.lock(), expected);
    }

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
