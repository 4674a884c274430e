//! Bind against a scripted API server: which calls in which order, and what
//! stays in the books after each outcome.

use std::sync::Arc;

use http::{Request, Response};
use kube::client::Body;
use serde_json::{Value, json};
use tower_test::mock::{self, SendResponse};

use super::*;
use crate::books::tests::{books, pod};
use aliquot_k8s::event;
use aliquot_k8s::leader::Leadership;
use aliquot_k8s::watch::{Freshness, Index};

/// What the API server does with one call.
enum Answer {
    /// A status code and a body.
    Says(u16, Value),
    /// Nothing, ever: the caller's deadline passes.
    Silence,
    /// A status code, and from then on somebody else holds the lease.
    SaysAndLease(u16, Leader),
    /// The pod as bound by the first POST seen.
    PodAsPosted,
}

type Script = Vec<(&'static str, Answer)>;

fn status(code: u16) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": format!("says {code}"), "reason": "x", "details": {}})
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
            Answer::Says(code, body) => (code, body),
            Answer::Silence => {
                unanswered.push(send);
                continue;
            }
            Answer::SaysAndLease(code, leader) => {
                leader.held_by("pod-b_1");
                (code, status(code))
            }
            Answer::PodAsPosted => {
                let posted = posted.as_ref().unwrap();
                let mut pod = serde_json::to_value(pod("a", 600, None)).unwrap();
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

/// Binds pod `a` (600 of 1000 MiB) to `n` against `script`; shows the answer
/// and what the books hold afterwards.
async fn check(script: Script, expected: &str, held: u64) {
    check_as(Leader::always(), script, expected, held).await;
}

async fn check_as(leader: Leader, script: Script, expected: &str, held: u64) {
    let (service, server) = mock::pair::<Request<Body>, Response<Body>>();
    let books = Arc::new(books());
    Index::apply(&*books, pod("a", 600, None));
    let (notes, _note_rx) = event::queue();
    let client = Client::new(service, "d");
    let binder = Binder::new(books.clone(), client, notes, leader);
    let api_server = tokio::spawn(play(script, server));
    let args = ExtenderBindingArgs {
        pod_name: "a".to_owned(),
        pod_namespace: "d".to_owned(),
        pod_uid: "a".to_owned(),
        node: "n".to_owned(),
    };
    // A script that failed must not leave the binder repeating for ever.
    let deadline = Duration::from_mins(1);
    let outcome = timeout(deadline, binder.bind(&args))
        .await
        .expect("a definite answer");
    let settled = binder.settled().len();
    drop(binder);
    api_server.await.unwrap();
    let shown = outcome.map_or_else(|error| error.to_string(), |()| "bound".to_owned());
    assert_eq!(shown, expected);
    let used = books.read(|ledger| {
        ledger.cluster().node("n").unwrap().cards[0]
            .sums
            .used
            .memory
            .0
    });
    assert_eq!(used, held, "{expected}");
    assert_eq!(settled, usize::from(held > 0));
}

use Answer::{PodAsPosted, Says, Silence};

#[tokio::test(start_paused = true)]
async fn one_request_books_and_binds() {
    check(vec![("POST", Says(201, status(201)))], "bound", 600).await;
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_does_not_lead_sends_nothing() {
    let leadership = Leadership::of("pod-a".to_owned(), DEADLINE);
    let leader = Leader::new(leadership, Freshness::default());
    let refused = "this replica may not bind: no kube-scheduler holds the lease";
    check_as(leader, vec![], refused, 0).await;
}

/// It used to keep the reservation until the pod was bound or gone, maybe for ever.
#[tokio::test(start_paused = true)]
async fn a_replica_that_lost_the_lease_gives_up_when_its_post_is_over() {
    let script = |leader: &Leader, then: Vec<Answer>| {
        let post = ("POST", Answer::SaysAndLease(503, leader.clone()));
        let gets = then.into_iter().map(|answer| ("GET", answer));
        std::iter::once(post).chain(gets).collect()
    };
    let unbound = |times| {
        let pod = serde_json::to_value(pod("a", 600, None)).unwrap();
        std::iter::repeat_n(pod, times).map(|pod| Says(200, pod))
    };
    let leader = Leader::replica();
    leader.held_by("pod-a_1");
    // After 0.05, 0.15, 0.35, 0.75, 1.55, 2.55 and 3.55 s.
    let lost = script(&leader, unbound(7).collect());
    let refused = "this replica may not bind: pod-b_1 holds the lease, this is pod-a";
    check_as(leader, lost, refused, 0).await;

    let leader = Leader::replica();
    leader.held_by("pod-a_1");
    let late = script(&leader, unbound(6).chain([PodAsPosted]).collect());
    check_as(leader, late, "bound", 600).await;
}

#[tokio::test(start_paused = true)]
async fn a_definite_refusal_frees_the_reservation() {
    check(
        vec![("POST", Says(404, status(404)))],
        "pod d/a with uid a is gone",
        0,
    )
    .await;
    let refused = "the API server refused the binding: says 403";
    check(vec![("POST", Says(403, status(403)))], refused, 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_is_asked_for_again_until_it_is_definite() {
    check(
        vec![
            ("POST", Silence),
            ("POST", Says(500, status(500))),
            ("POST", Says(409, status(409))),
            ("GET", PodAsPosted),
        ],
        "bound",
        600,
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_get_that_fails_proves_nothing() {
    check(
        vec![
            ("POST", Says(503, status(503))),
            ("POST", Says(409, status(409))),
            ("GET", Says(500, status(500))),
            ("POST", Says(404, status(404))),
        ],
        "pod d/a with uid a is gone",
        0,
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_refusal_after_a_lost_answer_proves_nothing() {
    let unbound = serde_json::to_value(pod("a", 600, None)).unwrap();
    check(
        vec![
            ("POST", Silence),
            ("POST", Says(403, status(403))),
            ("GET", Says(200, unbound)),
            ("POST", Says(403, status(403))),
            ("GET", PodAsPosted),
        ],
        "bound",
        600,
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_bound_elsewhere_frees_the_reservation() {
    let elsewhere = serde_json::to_value(pod("a", 600, Some("m"))).unwrap();
    check(
        vec![
            ("POST", Says(409, status(409))),
            ("GET", Says(200, elsewhere)),
        ],
        "the pod is bound to \"m\" by another binding",
        0,
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_of_the_same_name_and_another_uid_is_not_ours() {
    let mut other = pod("a", 600, Some("n"));
    other.metadata.uid = Some("b".to_owned());
    let other = serde_json::to_value(other).unwrap();
    check(
        vec![("POST", Says(409, status(409))), ("GET", Says(200, other))],
        "pod d/a with uid a is gone",
        0,
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn hamis_annotation_comes_with_ours_in_one_binding_when_asked_for() {
    let (service, mut server) = mock::pair::<Request<Body>, Response<Body>>();
    let books = Arc::new(books());
    Index::apply(&*books, pod("a", 600, None));
    let (notes, _note_rx) = event::queue();
    let client = Client::new(service, "d");
    let binder = Binder::new(books, client, notes, Leader::always()).with_hami_annotations(true);
    let api_server = tokio::spawn(async move {
        let (request, send) = server.next_request().await.expect("a Binding");
        let answer = Body::from(serde_json::to_vec(&status(201)).unwrap());
        send.send_response(Response::builder().status(201).body(answer).unwrap());
        let body = request.into_body().collect_bytes().await.unwrap();
        serde_json::from_slice::<Value>(&body).unwrap()
    });
    let args = ExtenderBindingArgs {
        pod_name: "a".to_owned(),
        pod_namespace: "d".to_owned(),
        pod_uid: "a".to_owned(),
        node: "n".to_owned(),
    };
    binder.bind(&args).await.unwrap();
    let posted = api_server.await.unwrap();
    let annotations = &posted["metadata"]["annotations"];
    assert_eq!(
        annotations[aliquot_core::hami::ALLOCATED],
        "GPU-n,NVIDIA,600,0:;"
    );
    assert!(annotations[ALLOCATION].is_string());
}

#[tokio::test(start_paused = true)]
async fn a_second_call_waits_for_the_first_and_writes_nothing() {
    let (service, server) = mock::pair::<Request<Body>, Response<Body>>();
    let books = Arc::new(books());
    Index::apply(&*books, pod("a", 600, None));
    let (notes, _note_rx) = event::queue();
    let client = Client::new(service, "d");
    let binder = Binder::new(books, client, notes, Leader::always());
    let script = vec![("POST", Silence), ("POST", Says(201, status(201)))];
    let api_server = tokio::spawn(play(script, server));
    let args = |node: &str| ExtenderBindingArgs {
        pod_name: "a".to_owned(),
        pod_namespace: "d".to_owned(),
        pod_uid: "a".to_owned(),
        node: node.to_owned(),
    };
    let (here, elsewhere) = (args("n"), args("m"));
    let (first, again, other) = tokio::join!(
        binder.bind(&here),
        binder.bind(&here),
        binder.bind(&elsewhere)
    );
    assert!(first.is_ok() && again.is_ok());
    assert_eq!(
        other.unwrap_err().to_string(),
        "the pod is booked on node n already"
    );
    assert!(binder.flights.lock().is_empty());
    drop(binder);
    api_server.await.unwrap();
}
