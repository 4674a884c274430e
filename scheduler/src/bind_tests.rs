//! Bind against a scripted API server: which calls in which order, and what is allocated after each
//! outcome.

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::leader::Leadership;
use crate::ledger_cache::tests::{cache, pod, pod_json, used};
use crate::pod_client::tests::{Calls, api_server, status};
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

/// Plays `script`; fails on a call too many or of another method.
async fn play(script: Script, mut calls: Calls) {
    let mut posted = None;
    let mut unanswered = Vec::new();
    for (method, answer) in script {
        let call = calls.next_call().await.expect("a call is missing");
        assert_eq!(call.method.as_str(), method, "{}", call.uri);
        if method == "POST" && posted.is_none() {
            posted = Some(call.body.clone());
        }
        let (code, body) = match answer {
            ScriptedResponse::Status(code, body) => (code, body),
            ScriptedResponse::Timeout => {
                unanswered.push(call);
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
        call.answer(code, &body);
    }
    assert!(calls.next_call().await.is_none(), "a call too many");
}

/// A binder of pod `a`, which asks for 600 of the 1000 MiB of `n`.
fn scene(leader: Leader) -> (Arc<LedgerCache>, Binder, Calls) {
    let (client, calls) = api_server();
    let cache = Arc::new(cache());
    Index::apply(&*cache, pod("a", 600, None));
    let (events, _event_rx) = event::queue();
    let binder = Binder::new(cache.clone(), PodClient::new(client), events, leader);
    (cache, binder, calls)
}

/// Binds pod `a` to `n` against `script`; checks the result and the memory that is allocated
/// afterwards.
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
    let (cache, binder, calls) = scene(leader);
    let api_server = tokio::spawn(play(script, calls));
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
    let leadership = Leadership::new("pod-a".to_owned(), DEADLINE);
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
    let mut long = status(403);
    long["message"] = json!("x".repeat(1000));
    let cut = "x".repeat(256);
    let cut = format!("the API server rejected the Binding: {cut}… (1000 characters)");
    for (script, expected, allocated) in [
        (vec![("POST", failed(404))], gone, 0),
        (
            vec![("POST", failed(403))],
            "the API server rejected the Binding: status 403",
            0,
        ),
        // By somebody else's webhook.
        (vec![("POST", Status(403, long))], cut.as_str(), 0),
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
        // A proxy did not wait for the API server.
        (
            vec![
                ("POST", Status(504, json!({"message": "upstream timeout"}))),
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
    let (_, binder, mut calls) = scene(Leader::always());
    let binder = binder.with_hami_annotations(true);
    let api_server = tokio::spawn(async move {
        let call = calls.next_call().await.expect("a Binding");
        let posted = call.body.clone();
        call.answer(201, &status(201));
        posted
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
    let (_, binder, calls) = scene(Leader::always());
    let script = vec![("POST", Timeout), ("POST", Status(201, status(201)))];
    let api_server = tokio::spawn(play(script, calls));
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
    let (cache, binder, calls) = scene(Leader::always());
    let script = vec![
        ("POST", Status(201, status(201))),
        ("GET", PodAsPosted),
        ("GET", Status(404, status(404))),
    ];
    let api_server = tokio::spawn(play(script, calls));
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
