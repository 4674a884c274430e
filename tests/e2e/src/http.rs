//! A plain HTTP client for the parts' own addresses. It neither follows redirects nor retries.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;

/// Longest wait for an answer.
const DEADLINE: Duration = Duration::from_secs(20);

/// Status and body of one request.
pub async fn call(address: SocketAddr, path: &str) -> Result<(u16, String)> {
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let request = Request::get(format!("http://{address}{path}")).body(Full::default())?;
    let answer = tokio::time::timeout(DEADLINE, client.request(request)).await??;
    let status = answer.status().as_u16();
    let bytes = tokio::time::timeout(DEADLINE, answer.into_body().collect()).await??;
    Ok((status, String::from_utf8(bytes.to_bytes().to_vec())?))
}

/// The body of a GET that answered 200.
pub async fn get(address: SocketAddr, path: &str) -> Result<String> {
    let (status, body) = call(address, path).await?;
    ensure!(status == 200, "{address}{path}: {status}: {body}");
    Ok(body)
}

/// The sum of all samples of one metric whose labels contain each of `labels`.
pub async fn metric(address: SocketAddr, name: &str, labels: &[&str]) -> Result<f64> {
    let text = get(address, "/metrics").await?;
    let mut sum = 0.0;
    for line in text.lines() {
        let rest = line.strip_prefix(name).unwrap_or_default();
        if rest.starts_with(['{', ' ']) && labels.iter().all(|label| rest.contains(label)) {
            let value = rest.rsplit(' ').next().context("a sample has a value")?;
            sum += value.parse::<f64>()?;
        }
    }
    Ok(sum)
}
