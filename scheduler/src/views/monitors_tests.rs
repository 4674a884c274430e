//! What is asked of monitors, by an API server that counts.

use std::sync::atomic::{AtomicUsize, Ordering};

use aliquot_core::access::Forbidden;
use aliquot_serve::access_control::Reviewed;
use kube::client::Body;
use serde_json::Value;
use tower::service_fn;

use super::*;

type Answers = fn(token: &str, path: &str) -> (u16, String);

/// Asks monitors that answer like this; and how often they were asked.
fn monitors(answers: Answers) -> (Monitors, Arc<AtomicUsize>) {
    guarded(answers, None)
}

/// The same for those whom `control` lets.
fn guarded(answers: Answers, control: Option<AccessControl>) -> (Monitors, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let service = service_fn(move |request: Request<Body>| {
        let counted = Arc::clone(&counted);
        async move {
            let path = request.uri().path().to_owned();
            let (status, text) = if path.ends_with("/proxy/usage") {
                counted.fetch_add(1, Ordering::Relaxed);
                let token = request.headers().get(TOKEN_HEADER);
                let token = token.map_or("", |token| token.to_str().unwrap());
                answers(token, &path)
            } else {
                let query = request.uri().query().unwrap_or_default();
                let pods = if query.contains("nodeName%3Dempty") {
                    json!([])
                } else {
                    json!([{"metadata": {"name": "agent-1"}}])
                };
                let list = json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
                    "metadata": {}, "items": pods});
                (200, list.to_string())
            };
            if text == "never" {
                std::future::pending::<()>().await;
            }
            let answer = http::Response::builder().status(status);
            answer.body(Body::from(text.into_bytes()))
        }
    });
    let client = Client::new(service, "d");
    (
        Monitors::new(client, Some("aliquot-system".to_owned()), control),
        count,
    )
}

async fn ask(monitors: &Monitors, node: &str, token: &str) -> Value {
    let answer = monitors.ask(vec![node.into()], Measured::Now, Some(token));
    let answer: Value = serde_json::from_str(&answer.await).unwrap();
    answer[node].clone()
}

#[tokio::test(start_paused = true)]
async fn viewers_share_an_answer_while_it_is_fresh() {
    let (monitors, count) = monitors(|token, path| {
        assert_eq!(
            path,
            "/api/v1/namespaces/aliquot-system/pods/https:agent-1:9396/proxy/usage"
        );
        (200, json!({ "asked_by": token }).to_string())
    });
    for viewer in 0..10 {
        let answer = ask(&monitors, "n1", &format!("viewer-{viewer}")).await;
        assert_eq!(answer["asked_by"], "viewer-0");
    }
    assert_eq!(count.load(Ordering::Relaxed), 1);
    tokio::time::advance(FRESH).await;
    assert_eq!(ask(&monitors, "n1", "later").await["asked_by"], "later");
    // With many nodes in view each is asked less often.
    for node in 0..100 {
        ask(&monitors, &format!("m{node}"), "later").await;
    }
    tokio::time::advance(FRESH).await;
    ask(&monitors, "n1", "last").await;
    assert_eq!(count.load(Ordering::Relaxed), 102);
}

#[tokio::test(start_paused = true)]
async fn refusal_of_one_viewer_is_not_the_answer_of_another() {
    let (monitors, _) = monitors(|token, _| match token {
        "allowed" => (200, json!({"node": "n1"}).to_string()),
        _ => (403, "no right to /usage".to_owned()),
    });
    let refused = ask(&monitors, "n1", "stranger").await;
    assert_eq!(refused["error"], "403 Forbidden: no right to /usage");
    assert_eq!(ask(&monitors, "n1", "allowed").await["node"], "n1");
}

#[tokio::test(start_paused = true)]
async fn shared_answer_is_shown_only_with_the_own_right() {
    let review = |token: String, path: String| -> Reviewed {
        assert_eq!(path, "/usage");
        Box::pin(async move {
            Ok(match &*token {
                "reader" | "allowed" => Access::Allowed,
                "" => Access::Unauthenticated,
                _ => Access::Forbidden(Forbidden {
                    account: token,
                    path,
                }),
            })
        })
    };
    let control = AccessControl::new(review, []).unwrap();
    let (monitors, count) = guarded(
        |_, _| (200, json!({"node": "n1"}).to_string()),
        Some(control),
    );
    for viewer in ["allowed", "reader"] {
        assert_eq!(ask(&monitors, "n1", viewer).await["node"], "n1");
    }
    for (viewer, why) in [
        ("stranger", "stranger may not get /usage"),
        ("", "the token is not of any account"),
    ] {
        let refused = ask(&monitors, "n1", viewer).await;
        let error = refused["error"].as_str().unwrap_or_default();
        assert!(error.starts_with(why), "{refused}");
    }
    assert_eq!(count.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn reports_why_a_monitor_gave_no_answer() {
    let check = async |answers: Answers, node: &str, expected: &str| {
        let answer = ask(&monitors(answers).0, node, "t").await;
        let error = answer["error"].as_str().unwrap_or_default();
        assert!(error.starts_with(expected), "{answer}");
    };
    let fine: Answers = |_, _| (200, "{}".to_owned());
    check(fine, "empty", "no monitor of Aliquot runs on the node").await;
    let late: Answers = |_, _| (200, "never".to_owned());
    check(late, "n1", "its monitor does not answer within 4 s").await;
    let status = json!({"kind": "Status", "message": "dial tcp: timeout"}).to_string();
    assert_eq!(reason(&status), "dial tcp: timeout");
    let down: Answers = |_, _| (503, "no sample yet".to_owned());
    check(down, "n1", "503 Service Unavailable: no sample yet").await;
    let odd: Answers = |_, _| (200, "<html>".to_owned());
    check(odd, "n1", "its monitor's answer is not JSON: ").await;
}

#[test]
fn answers_stay_until_a_page_has_asked_for_all() {
    for nodes in [6, 450, 5_000] {
        // As the page does: 32 every five seconds.
        let asked_for_all = Duration::from_secs(5 * nodes / 32);
        assert!(retention(usize::try_from(nodes).unwrap()) > asked_for_all);
    }
}
