//! Responses of the proxy itself, in the API server's form. None is a success, except the head of a
//! watch.

use anyhow::Result;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::header::CONTENT_TYPE;
use hyper::{Response, StatusCode};
use serde_json::json;

/// An answer, its own or one passed on.
pub(super) type Reply = Response<UnsyncBoxBody<Bytes, anyhow::Error>>;

fn status(code: StatusCode) -> serde_json::Value {
    json!({
        "apiVersion": "v1",
        "kind": "Status",
        "status": "Failure",
        "message": "answered by the test's proxy",
        "reason": "Proxy",
        "code": code.as_u16(),
    })
}

/// An error of this status.
pub(super) fn status_reply(code: StatusCode) -> Result<Reply> {
    reply(code, status(code).to_string())
}

fn reply(code: StatusCode, text: String) -> Result<Reply> {
    let body = Full::from(text)
        .map_err(|never| match never {})
        .boxed_unsync();
    let answer = Response::builder().status(code);
    Ok(answer.header(CONTENT_TYPE, "application/json").body(body)?)
}

/// A watch with the error that its resource version is expired.
pub(super) fn expired() -> Result<Reply> {
    let event = json!({"type": "ERROR", "object": status(StatusCode::GONE)});
    reply(StatusCode::OK, format!("{event}\n"))
}
