//! A ledger that is not ready places nothing.

use std::sync::Arc;

use aliquot_cluster::wait::{OrNotYet as _, PATIENCE, eventually};
use aliquot_e2e::http;
use aliquot_e2e::pods::simple;
use aliquot_e2e::stack::{Kind, Stack};
use anyhow::{Result, ensure};
use hyper::Method;
use serde_json::{Value, json};

/// A second scheduler that cannot list answers, but with no node.
pub(crate) async fn not_ready(stack: Arc<Stack>) -> Result<()> {
    let cluster = &stack.cluster;
    let real = std::fs::read_to_string(cluster.kubeconfig())?;
    let nowhere = format!("https://{}", cluster.part_address(9));
    let blind = real.replace(&cluster.api_url(), &nowhere);
    let file = stack.write("nowhere.kubeconfig", &blind)?;
    let address = cluster.part_address(8);
    let args = [
        "--kubeconfig",
        &file.to_string_lossy(),
        "--listen",
        &address.to_string(),
    ];
    let program = stack.program(Kind::Scheduler);
    let part = cluster.start_part("blind-scheduler", &program, &args, &[])?;
    let post = async |path: &str, body: Value| {
        http::call(Method::POST, address, path, body.to_string()).await
    };

    let ready = eventually(PATIENCE, "the blind scheduler to listen", || async {
        part.check()?;
        http::call(Method::GET, address, "/readyz", String::new())
            .await
            .or_not_yet()
            .map(Some)
    });
    let (status, body) = ready.await?;
    ensure!(status == 503, "/readyz: {status} {body}");
    let pod = simple("default", "p", &[("gpu", "1")]);
    let request = json!({"Pod": pod, "NodeNames": ["n1"]});
    let (status, body) = post("/filter", request.clone()).await?;
    let answer: Value = serde_json::from_str(&body)?;
    let error = answer["Error"].as_str().unwrap_or_default();
    ensure!(
        status == 200
            && error.starts_with("aliquot-scheduler is not ready: ")
            && answer["NodeNames"].is_null(),
        "/filter: {status} {body}"
    );
    let (status, body) = post("/prioritize", request).await?;
    ensure!(status == 503, "/prioritize: {status} {body}");
    let request = json!({"PodName": "p", "PodNamespace": "default", "PodUID": "u", "Node": "n1"});
    let (status, body) = post("/bind", request).await?;
    let answer: Value = serde_json::from_str(&body)?;
    ensure!(
        status == 200 && answer["Error"].as_str() == Some(error),
        "/bind: {status} {body}"
    );
    part.kill().await
}
