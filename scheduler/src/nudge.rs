//! Wakes refused pods when something became free (design 4.6).
//!
//! kube-scheduler tries a refused pod again on cluster events, but it may hear
//! of a pod's end before our books do, be refused once more, and then wait for
//! minutes. A patched annotation on exactly the pods that fit now is an event
//! that wakes only them.
//! Fed by: the books. Must not: patch a pod that still does not fit.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::books::Books;
use crate::fail_point::{self, Point};
use crate::leader::Leader;
use crate::metrics::Metrics;

/// The annotation that is patched; its value is the time in milliseconds.
pub const NUDGE: &str = "aliquot.dev/nudge";
const DEADLINE: Duration = Duration::from_secs(3);
/// Pause before pods that could not be woken are looked at again.
const RETRY: Duration = Duration::from_secs(1);

/// Runs until `stop`.
pub async fn run(
    books: Arc<Books>,
    client: Client,
    leader: Leader,
    metrics: Metrics,
    stop: CancellationToken,
) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = books.enlarged() => {}
        }
        // The replica that leads does it. Until then the books remember what grew:
        // a new leader's list is in them before it leads.
        tokio::select! {
            () = stop.cancelled() => return,
            () = leader.leads() => {}
        }
        let mut not_woken = Vec::new();
        for (uid, pod) in books.wakeable() {
            let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace);
            let patch = Patch::Merge(patch(&pod.uid, SystemTime::now()));
            let params = PatchParams::default();
            let call = api.patch_metadata(&pod.name, &params, &patch);
            fail_point::at(Point::NudgeBeforePatch);
            let answer = timeout(DEADLINE, call).await;
            fail_point::at(Point::NudgeAfterPatch);
            match answer {
                Ok(Ok(_)) => {
                    metrics.nudges.inc();
                    tracing::info!(pod = pod.name, namespace = pod.namespace, "fits now, woken");
                }
                Ok(Err(kube::Error::Api(status))) if status.code == 404 => books.forget(&uid),
                // A conflict, too: of several writers, or another pod has its name (uid
                // precondition). Which, the watch will say.
                Ok(Err(error)) => {
                    tracing::warn!(pod = pod.name, %error, "fits now, but could not be woken");
                    not_woken.push(uid);
                }
                Err(elapsed) => {
                    tracing::warn!(pod = pod.name, %elapsed, "fits now, but could not be woken");
                    not_woken.push(uid);
                }
            }
        }
        if not_woken.is_empty() {
            continue;
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(RETRY) => {}
        }
        for uid in &not_woken {
            books.not_woken(uid);
        }
    }
}

fn patch(uid: &str, now: SystemTime) -> serde_json::Value {
    let millis = now
        .duration_since(UNIX_EPOCH)
        .map_or(0, |age| age.as_millis());
    json!({"metadata": {"uid": uid, "annotations": {NUDGE: millis.to_string()}}})
}

#[cfg(test)]
mod tests {
    use aliquot_k8s::watch::Index;
    use http::{Request, Response};
    use kube::client::Body;
    use prometheus_client::registry::Registry;
    use tower_test::mock;

    use super::*;
    use crate::books::tests::{books, pod};

    /// The list of a new term grew the books before this replica led, and that
    /// was forgotten: the pods waited for the next pod's end.
    #[tokio::test(start_paused = true)]
    async fn what_grew_before_this_replica_led_wakes_pods_when_it_leads() {
        let leader = Leader::replica();
        leader.held_by("pod-b_1");
        let nudge = check(leader.clone(), &[200], async move || {
            let waited = tokio::time::timeout(DEADLINE, std::future::pending::<()>());
            assert!(waited.await.is_err());
            leader.held_by("pod-a_1");
        });
        nudge.await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_whose_patch_failed_is_woken_again() {
        check(Leader::always(), &[503, 200], async || {}).await;
    }

    /// Many writers of one pod conflict: it was taken for gone, and slept on.
    #[tokio::test(start_paused = true)]
    async fn a_pod_whose_patch_met_another_writer_is_woken_again() {
        check(Leader::always(), &[409, 409, 200], async || {}).await;
    }

    /// A refused pod fits from the start; the patches are answered so after `first`.
    async fn check(leader: Leader, codes: &[u16], first: impl AsyncFnOnce()) {
        let (service, mut server) = mock::pair::<Request<Body>, Response<Body>>();
        let books = Arc::new(books());
        Index::reset(&*books, vec![pod("a", 600, None)]);
        let metrics = Metrics::new(&mut Registry::default());
        let stop = CancellationToken::new();
        let client = Client::new(service, "d");
        let nudge = run(books, client, leader, metrics.clone(), stop.clone());
        let nudge = tokio::spawn(nudge);
        first().await;
        for code in codes {
            let request = timeout(RETRY * 2, server.next_request()).await;
            let (request, send) = request.expect("in time").expect("a patch");
            assert_eq!(request.uri().path(), "/api/v1/namespaces/d/pods/a");
            let body = if *code == 200 {
                json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}})
            } else {
                json!({"kind": "Status", "status": "Failure", "code": code})
            };
            let body = Body::from(serde_json::to_vec(&body).unwrap());
            send.send_response(Response::builder().status(*code).body(body).unwrap());
        }
        stop.cancel();
        nudge.await.unwrap();
        assert_eq!(metrics.nudges.get(), 1);
    }
}
