//! Bind against a scripted API server: which calls in which order, and what is allocated after each
//! outcome.

use std::sync::Arc;

use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tower_test::mock::{self, SendResponse};

use super::*;
use crate::leader::Leadership;
use crate::ledger_cache::tests::{cache, pod, pod_json, used};
use aliquot_k8s::event;
use aliquot_k8s::watch::{Freshness, Index};

/// What the API server does with one call.
enum ScriptedResponse {
    /// A status code and a body.
    Status(u16, Value),
    /// None: the caller's deadline passes.
    Timeout,
    /// A status code, and from then on another replica has the Lease.
    StatusAndLeaseLost(u16, Leader),
    /// The pod as bound by the first POST seen.
    PodAsPosted,
}

type Script = Vec<(&'static str, ScriptedResponse)>;

fn status(code: u16) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": format!("status {code}"), "reason": "x", "details": {}})
}

/// Plays `script`; fails on a call too many or of another method.
async fn play(script: Script, mut server: mock::Handle<Request<Body>, Response<Body>>) {
    let mut posted = None;
    let mut unanswered: Vec<SendResponse<Response<Body>>> = Vec::new();
    for (method, answer) in script {
        let (request, send) = server.next_request().await.expect("a call is missing");
        assert_eq!(request.method().as_str(), method, "{}", request.uri());
        let body = request.into_body().collect_bytes().await.unwrap();
        if method == "POST" && posted.is_none() {
            posted = Some(serde_json::from_slice::<Value>(&body).unwrap());
        }
        let (code, body) = match answer {
            ScriptedResponse::Status(code, body) => (code, body),
            ScriptedResponse::Timeout => {
                unanswered.push(send);
                continue;
            }
            ScriptedResponse::StatusAndLeaseLost(code, leader) => {
                leader.set_holder("pod-b_1");
                (code, status(code))
            }
            ScriptedResponse::PodAsPosted => {
                let posted = posted.as_ref().unwrap();
                let mut pod = pod_json("a", 600, None);
                pod["metadata"]["annotations"] = posted["metadata"]["annotations"].clone();
                pod["spec"]["nodeName"] = posted["target"]["name"].clone();
                (200, pod)
            }
        };
        let response = Response::builder().status(code);
        send.send_response(
            response
                .body(Body::from(serde_json::to_vec(&body).unwrap()))
                .unwrap(),
        );
    }
    assert!(server.next_request().await.is_none(), "a call too many");
}

/// Binds pod `a` (600 of 1000 MiB) to `n` against `script`; checks the result and the memory that
/// is allocated afterwards.
async fn check(script: Script, expected: &str, allocated: u64) {
    check_as(Leader::always(), script, expected, allocated).await;
}

/// To bind pod `a`.
fn args(node: &str) -> ExtenderBindingArgs {
    ExtenderBindingArgs {
        pod_name: "a".to_owned(),
        pod_namespace: "d".to_owned(),
        pod_uid: "a".to_owned(),
        node: node.to_owned(),
    }
}

async fn check_as(leader: Leader, script: Script, expected: &str, allocated: u64) {
    let (service, server) = mock::pair::<Request<Body>, Response<Body>>();
    let cache = Arc::new(cache());
    Index::apply(&*cache, pod("a", 600, None));
    let (events, _event_rx) = event::queue();
    let pods = PodClient::new(Client::new(service, "d"));
    let binder = Binder::new(cache.clone(), pods, events, leader);
    let api_server = tokio::spawn(play(script, server));
    // A script that failed must not leave the binder repeating forever.
    let deadline = Duration::from_mins(1);
    let outcome = timeout(deadline, binder.bind(&args("n")))
        .await
        .expect("a definite outcome");
    let settled = binder.settled().len();
    drop(binder);
    api_server.await.unwrap();
    let shown = outcome.map_or_else(|error| error.to_string(), |()| "bound".to_owned());
    assert_eq!(shown, expected);
    assert_eq!(used(&cache), allocated, "{expected}");
    assert_eq!(settled, usize::from(allocated > 0));
}

use ScriptedResponse::{PodAsPosted, Status, Timeout};

#[tokio::test(start_paused = true)]
async fn binds_with_one_request() {
    check(vec![("POST", Status(201, status(201)))], "bound", 600).await;
}

#[tokio::test(start_paused = true)]
async fn sends_nothing_while_not_leading() {
    let leadership = Leadership::of("pod-a".to_owned(), DEADLINE);
    let leader = Leader::new(leadership, Freshness::default());
    let refused = "this replica may not bind: no kube-scheduler holds the lease";
    check_as(leader, vec![], refused, 0).await;
}

/// Otherwise the reservation could last until the pod is bound or deleted.
#[tokio::test(start_paused = true)]
async fn stops_after_its_last_post_when_lease_is_lost() {
    let script = |leader: &Leader, then: Vec<ScriptedResponse>| {
        let post = (
            "POST",
            ScriptedResponse::StatusAndLeaseLost(503, leader.clone()),
        );
        let gets = then.into_iter().map(|answer| ("GET", answer));
        std::iter::once(post).chain(gets).collect()
    };
    let unbound = |times| {
        let pod = pod_json("a", 600, None);
        std::iter::repeat_n(pod, times).map(|pod| Status(200, pod))
    };
    let leader = Leader::replica();
    leader.set_holder("pod-a_1");
    // After 0.05, 0.15, 0.35, 0.75, 1.55, 2.55 and 3.55 s.
    let lost = script(&leader, unbound(7).collect());
    let refused = "this replica may not bind: pod-b_1 holds the lease, this is pod-a";
    check_as(leader, lost, refused, 0).await;

    let leader = Leader::replica();
    leader.set_holder("pod-a_1");
    let late = script(&leader, unbound(6).chain([PodAsPosted]).collect());
    check_as(leader, late, "bound", 600).await;
}

#[tokio::test(start_paused = true)]
async fn repeats_binding_until_outcome_is_definite() {
    let gone = "pod d/a with uid a is gone";
    let failed = |code: u16| Status(code, status(code));
    let found = |node| Status(200, pod_json("a", 600, node));
    let mut other = pod_json("a", 600, Some("n"));
    other["metadata"]["uid"] = json!("b");
    for (script, expected, allocated) in [
        (vec![("POST", failed(404))], gone, 0),
        (
            vec![("POST", failed(403))],
            "the API server rejected the Binding: status 403",
            0,
        ),
        (
            vec![
                ("POST", Timeout),
                ("POST", failed(500)),
                ("POST", failed(409)),
                ("GET", PodAsPosted),
            ],
            "bound",
            600,
        ),
        // The GET fails, too.
        (
            vec![
                ("POST", failed(503)),
                ("POST", failed(409)),
                ("GET", failed(500)),
                ("POST", failed(404)),
            ],
            gone,
            0,
        ),
        // Refused after a response was lost.
        (
            vec![
                ("POST", Timeout),
                ("POST", failed(403)),
                ("GET", found(None)),
                ("POST", failed(403)),
                ("GET", PodAsPosted),
            ],
            "bound",
            600,
        ),
        (
            vec![("POST", failed(409)), ("GET", found(Some("m")))],
            "another Binding has bound the pod to node \"m\"",
            0,
        ),
        // Of the same name.
        (
            vec![("POST", failed(409)), ("GET", Status(200, other))],
            gone,
            0,
        ),
    ] {
        check(script, expected, allocated).await;
    }
}

#[tokio::test(start_paused = true)]
async fn writes_hami_annotation_in_same_binding() {
    let (service, mut server) = mock::pair::<Request<Body>, Response<Body>>();
    let cache = Arc::new(cache());
    Index::apply(&*cache, pod("a", 600, None));
    let (events, _event_rx) = event::queue();
    let pods = PodClient::new(Client::new(service, "d"));
    let binder = Binder::new(cache, pods, events, Leader::always()).with_hami_annotations(true);
    let api_server = tokio::spawn(async move {
        let (request, send) = server.next_request().await.expect("a Binding");
        let answer = Body::from(serde_json::to_vec(&status(201)).unwrap());
        send.send_response(Response::builder().status(201).body(answer).unwrap());
        let body = request.into_body().collect_bytes().await.unwrap();
        serde_json::from_slice::<Value>(&body).unwrap()
    });
    binder.bind(&args("n")).await.unwrap();
    let posted = api_server.await.unwrap();
    let annotations = &posted["metadata"]["annotations"];
    assert_eq!(
        annotations[aliquot_core::hami::ALLOCATED],
        "GPU-n,NVIDIA,600,0:;"
    );
    assert!(annotations[ALLOCATION].is_string());
}

#[tokio::test(start_paused = true)]
async fn second_bind_call_waits_for_first_and_writes_nothing() {
    let (service, server) = mock::pair::<Request<Body>, Response<Body>>();
    let cache = Arc::new(cache());
    Index::apply(&*cache, pod("a", 600, None));
    let (events, _event_rx) = event::queue();
    let pods = PodClient::new(Client::new(service, "d"));
    let binder = Binder::new(cache, pods, events, Leader::always());
    let script = vec![("POST", Timeout), ("POST", Status(201, status(201)))];
    let api_server = tokio::spawn(play(script, server));
    let (here, elsewhere) = (args("n"), args("m"));
    let (first, again, other) = tokio::join!(
        binder.bind(&here),
        binder.bind(&here),
        binder.bind(&elsewhere)
    );
    assert!(first.is_ok() && again.is_ok());
    assert_eq!(
        other.unwrap_err().to_string(),
        "the pod already has an allocation on node n"
    );
    assert!(binder.in_flight.lock().is_empty());
    drop(binder);
    api_server.await.unwrap();
}

/// A pod that was bound and deleted while the watch was away: no event ever shows it.
#[tokio::test(start_paused = true)]
async fn releases_reservation_of_pod_that_vanished_unseen() {
    let (service, server) = mock::pair::<Request<Body>, Response<Body>>();
    let cache = Arc::new(cache());
    Index::apply(&*cache, pod("a", 600, None));
    let (events, _event_rx) = event::queue();
    let pods = PodClient::new(Client::new(service, "d"));
    let binder = Binder::new(cache.clone(), pods, events, Leader::always());
    let mut not_found = status(404);
    not_found["reason"] = json!("NotFound");
    let script = vec![
        ("POST", Status(201, status(201))),
        ("GET", PodAsPosted),
        ("GET", Status(404, not_found)),
    ];
    let api_server = tokio::spawn(play(script, server));
    binder.bind(&args("n")).await.unwrap();
    let bound = Instant::now();
    // Not overdue, still there, no longer there.
    for (now, allocated) in [(bound, 600), (bound + OVERDUE, 600), (bound + OVERDUE, 0)] {
        binder.release_vanished(now).await;
        assert_eq!(used(&cache), allocated);
    }
    drop(binder);
    api_server.await.unwrap();
}
