//! Responses of the proxy itself, in the API server's form. None is a success.

use anyhow::Result;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::header::CONTENT_TYPE;
use hyper::{Response, StatusCode};
use serde_json::json;

/// An answer, its own or one passed on.
pub(super) type Reply = Response<UnsyncBoxBody<Bytes, anyhow::Error>>;

pub(super) fn status_reply(code: StatusCode) -> Result<Reply> {
    let status = json!({
        "apiVersion": "v1",
        "kind": "Status",
        "status": "Failure",
        "message": "answered by the test's proxy",
        "reason": "Proxy",
        "code": code.as_u16(),
    });
    let body = Full::from(status.to_string())
        .map_err(|never| match never {})
        .boxed_unsync();
    let answer = Response::builder().status(code);
    Ok(answer.header(CONTENT_TYPE, "application/json").body(body)?)
}
