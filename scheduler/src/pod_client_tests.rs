//! An API server whose answers a test gives.

use aliquot_k8s::event::PodRef;
use http::{Method, Request, Response, Uri};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tower_test::mock::{self, SendResponse};

use super::PodClient;

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
        let body = Body::from(serde_json::to_vec(body).unwrap());
        let response = Response::builder().status(code).body(body);
        self.send.send_response(response.unwrap());
    }
}

/// The answer to a write with this code, as far as clients read it.
pub(crate) fn status(code: u16) -> Value {
    let reason = if code == 404 { "NotFound" } else { "x" };
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "status": "Failure",
        "code": code, "message": format!("status {code}"), "reason": reason, "details": {}})
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
    let pods = PodClient::new(client);
    let pod = PodRef {
        namespace: "d".to_owned(),
        name: "a".to_owned(),
        uid: "a".to_owned(),
    };
    pods.annotate(&pod, "key", Some("text")).await.unwrap();
    pods.nominate(&pod, &"n".into()).await.unwrap();
    drop(pods);
    answering.await.unwrap();
}
