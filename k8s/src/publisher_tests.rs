//! The requests that reach the API server for events on pods.

use http::{Method, Response};
use kube::client::Body;
use serde_json::Value;
use tower_test::mock;

use super::*;
use crate::event::{self, PodRef};

fn note(uid: &str, text: &str) -> EventNote {
    EventNote {
        pod: PodRef {
            namespace: "ns".to_owned(),
            name: "p".to_owned(),
            uid: uid.to_owned(),
        },
        warning: true,
        reason: "Refused",
        action: "Scheduling",
        text: text.to_owned(),
    }
}

/// Sends the notes and returns the method and body of each request; `gone`
/// answers 404 to every patch.
async fn requests(notes: &[EventNote], gone: bool) -> Vec<(Method, Value)> {
    let (service, mut server) = mock::pair::<http::Request<Body>, Response<Body>>();
    let (queue, note_rx) = event::queue();
    for note in notes {
        queue.send(note.clone());
    }
    drop(queue);
    let stop = CancellationToken::new();
    let published = tokio::spawn(publish(Client::new(service, "d"), "test", note_rx, stop));
    let mut seen = Vec::new();
    while let Some((request, answer)) = server.next_request().await {
        let (parts, body) = request.into_parts();
        let body = body.collect_bytes().await.unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap();
        let missing = gone && parts.method == Method::PATCH;
        let status = json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": "gone"});
        let text = if missing { status } else { json!({}) };
        let answered = Response::builder().status(if missing { 404 } else { 201 });
        let answered = answered.body(Body::from(text.to_string().into_bytes()));
        answer.send_response(answered.unwrap());
        seen.push((parts.method, body));
    }
    published.await.unwrap();
    seen
}

#[tokio::test]
async fn repeated_text_becomes_a_series_and_new_text_an_event() {
    let notes = [
        note("a", "x"),
        note("a", "x"),
        note("a", "x"),
        note("a", "y"),
    ];
    let seen = requests(&notes, false).await;
    let methods: Vec<_> = seen.iter().map(|(method, _)| method.clone()).collect();
    assert_eq!(
        methods,
        [Method::POST, Method::PATCH, Method::PATCH, Method::POST]
    );
    assert_eq!(seen[0].1["note"], "x");
    assert_eq!(seen[2].1["series"]["count"], 3);
    assert_eq!(seen[3].1["note"], "y");
}

#[tokio::test]
async fn separates_events_of_pods_with_one_name() {
    let seen = requests(&[note("a", "x"), note("b", "x")], false).await;
    let mut uids: Vec<_> = seen
        .iter()
        .map(|(_, body)| body["regarding"]["uid"].to_string())
        .collect();
    uids.sort();
    assert_eq!(uids, ["\"a\"", "\"b\""]);
}

#[tokio::test]
async fn recreates_a_deleted_event() {
    let seen = requests(&[note("a", "x"), note("a", "x")], true).await;
    let methods: Vec<_> = seen.into_iter().map(|(method, _)| method).collect();
    assert_eq!(methods, [Method::POST, Method::PATCH, Method::POST]);
}

#[test]
fn truncates_long_note_at_a_character_boundary() {
    assert_eq!(truncated("short".to_owned()), "short");
    let long = truncated("ü".repeat(2000));
    assert!(
        long.len() <= MAX_NOTE && long.ends_with('…'),
        "{}",
        long.len()
    );
}

#[test]
fn name_of_an_event_is_valid_for_the_longest_name_of_a_pod() {
    let at_end = format!("{}-b", "a".repeat(251));
    let inside = format!("{}{}", "a".repeat(230), "-.".repeat(9));
    for pod in ["p", at_end.as_str(), inside.as_str()] {
        let name = event_name(pod);
        assert!(name.len() <= MAX_NAME, "{name}");
        let (start, end) = name.rsplit_once('.').unwrap();
        assert!(pod.starts_with(start) && !end.is_empty(), "{name}");
        assert!(start.ends_with(char::is_alphanumeric), "{name}");
    }
}
