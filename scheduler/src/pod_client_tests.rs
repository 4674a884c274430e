//! An API server whose answers a test gives.

use aliquot_k8s::event::PodRef;
use http::{Method, Request, Response, Uri};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tower_test::mock::{self, SendResponse};

use super::{EvictionOutcome, PodClient, WriteOutcome};

/// The calls of the API server's clients, in order.
pub(crate) struct Calls(mock::Handle<Request<Body>, Response<Body>>);

pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    /// `null` where there is none.
    pub(crate) body: Value,
    send: SendResponse<Response<Body>>,
}

/// A client, and the calls that it makes.
pub(crate) fn api_server() -> (Client, Calls) {
    let (service, handle) = mock::pair();
    (Client::new(service, "d"), Calls(handle))
}

impl Calls {
    /// The next call; `None` once there is no client.
    pub(crate) async fn next_call(&mut self) -> Option<Call> {
        let (request, send) = self.0.next_request().await?;
        let (parts, body) = request.into_parts();
        let body = body.collect_bytes().await.unwrap();
        Some(Call {
            method: parts.method,
            uri: parts.uri,
            body: serde_json::from_slice(&body).unwrap_or_default(),
            send,
        })
    }
}

impl Call {
    pub(crate) fn answer(self, code: u16, body: &Value) {
        self.answer_bytes(code, serde_json::to_vec(body).unwrap());
    }

    fn answer_bytes(self, code: u16, body: Vec<u8>) {
        let response = Response::builder().status(code).body(Body::from(body));
        self.send.send_response(response.unwrap());
    }
}

/// The answer to a write with this code, as far as clients read it.
pub(crate) fn status(code: u16) -> Value {
    let reason = if code == 404 { "NotFound" } else { "x" };
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "status": "Failure",
        "code": code, "message": format!("status {code}"), "reason": reason, "details": {}})
}

fn pod() -> PodRef {
    PodRef {
        namespace: "d".to_owned(),
        name: "a".to_owned(),
        uid: "a".to_owned(),
    }
}

/// Whoever may patch the pod may write managed fields that cannot be read.
#[tokio::test]
async fn patch_is_done_whatever_the_pod_in_its_answer_has() {
    let (client, mut calls) = api_server();
    let managed = json!([{"manager": "m", "time": "9999-12-31T23:59:59Z"}]);
    let patched = json!({"metadata": {"name": "a", "managedFields": managed}});
    let answering = tokio::spawn(async move {
        while let Some(call) = calls.next_call().await {
            call.answer(200, &patched);
        }
    });
    let (pods, pod) = (PodClient::new(client), pod());
    pods.annotate(&pod, "key", Some("text")).await.unwrap();
    pods.nominate(&pod, &"n".into()).await.unwrap();
    drop(pods);
    answering.await.unwrap();
}

/// Otherwise kube-scheduler keeps the node's room for the pod.
#[tokio::test]
async fn withdraws_nomination_of_unknown_outcome() {
    for (code, expected) in [(503, 2), (404, 1)] {
        let (client, mut calls) = api_server();
        let answering = tokio::spawn(async move {
            let mut nominated = Vec::new();
            while let Some(call) = calls.next_call().await {
                nominated.push(call.body["status"]["nominatedNodeName"].clone());
                let code = if nominated.len() == 1 { code } else { 200 };
                call.answer(code, &status(code));
            }
            nominated
        });
        let pods = PodClient::new(client);
        assert!(pods.nominate(&pod(), &"n".into()).await.is_err());
        drop(pods);
        let nominated = answering.await.unwrap();
        let expected = &[json!("n"), Value::Null][..expected];
        assert_eq!(nominated, expected, "{code}");
    }
}

/// In place of a protected pod another one would be evicted.
#[tokio::test]
async fn throttled_eviction_is_no_protected_one() {
    let (client, mut calls) = api_server();
    let answering = tokio::spawn(async move {
        let call = calls.next_call().await.unwrap();
        let text = b"Too many requests, please try again later.\n";
        call.answer_bytes(429, text.to_vec());
        let call = calls.next_call().await.unwrap();
        call.answer(429, &status(429));
    });
    let pods = PodClient::new(client);
    let throttled = pods.evict(&pod(), true).await;
    assert!(
        matches!(throttled, EvictionOutcome::Failed(_)),
        "{throttled:?}"
    );
    let protected = pods.evict(&pod(), true).await;
    assert!(
        matches!(protected, EvictionOutcome::Protected(_)),
        "{protected:?}"
    );
    answering.await.unwrap();
}

/// A webhook of somebody else may have written it.
#[tokio::test]
async fn repeats_no_long_answer_of_the_api_server() {
    let (client, mut calls) = api_server();
    let answering = tokio::spawn(async move {
        let mut long = status(403);
        long["message"] = json!("x".repeat(1000));
        for _ in 0..2 {
            calls.next_call().await.unwrap().answer(403, &long);
        }
    });
    let (pods, pod) = (PodClient::new(client), pod());
    let cut = format!("{}… (1000 characters)", "x".repeat(256));
    let evicted = pods.evict(&pod, true).await;
    assert_eq!(evicted, EvictionOutcome::Failed(cut.clone()));
    let written = pods.annotate(&pod, "key", Some("text")).await;
    assert_eq!(WriteOutcome::from(written), WriteOutcome::NotWritten(cut));
    answering.await.unwrap();
}
