//! A ledger that is not ready answer nothing.

use std::sync::Arc;
use std::time::Duration;

use aliquot_cluster::until;
use aliquot_cluster::wait::{OrNotYet as _, eventually};
use aliquot_e2e::http;
use aliquot_e2e::pool::{Pool, Shape, node_of};
use aliquot_e2e::proxy::{Proxy, Traffic};
use aliquot_e2e::stack::{Kind, Stack};
use anyhow::{Result, ensure};
use hyper::Method;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use serde_json::{Value, json};

use super::proxied::{start, with_proxy};

const ONE: Shape = Shape {
    gpus: 1,
    replicas: 10,
};
const LIMITS: [(&str, &str); 2] = [("gpu", "1"), ("gpumem", "1000")];
const EVERYTHING: [Traffic; 4] = [
    Traffic::List("pods"),
    Traffic::List("nodes"),
    Traffic::Watch("pods"),
    Traffic::Watch("nodes"),
];
/// Errors for 6 s make a watch stale; it is retried every 3 s.
const STALE: Duration = Duration::from_mins(2);

/// Waits until `/readyz` is 503 with these words, and checks the verbs.
async fn unready(stack: &Stack, pool: &Pool<'_>, words: &str) -> Result<()> {
    let address = stack.address(Kind::Scheduler);
    let what = format!("/readyz to report {words:?}");
    eventually(STALE, &what, || async {
        let (status, text) = http::call(Method::GET, address, "/readyz", String::new())
            .await
            .or_not_yet()?;
        until!(status == 503 && text.contains(words), "{status} {text}");
        Ok(Some(()))
    })
    .await?;
    let pod = pool.pod("filtered", &LIMITS);
    let body = json!({"Pod": pod, "NodeNames": [pool.name]}).to_string();
    let (status, text) = http::call(Method::POST, address, "/filter", body.clone()).await?;
    let answer: Value = serde_json::from_str(&text)?;
    let error = answer["Error"].as_str().unwrap_or_default();
    ensure!(
        status == 200 && error.contains("not ready") && error.contains(words),
        "{status} {answer}"
    );
    ensure!(answer["NodeNames"].is_null(), "{answer}");
    let (status, text) = http::call(Method::POST, address, "/prioritize", body).await?;
    ensure!(status == 503, "{status} {text}");
    let binding =
        json!({"PodName": "filtered", "PodNamespace": pool.name, "PodUID": "u", "Node": pool.name});
    let (_, text) = http::call(Method::POST, address, "/bind", binding.to_string()).await?;
    ensure!(text.contains("not ready"), "{text}");
    Ok(())
}

/// A pod created meanwhile is filtered, and is not bound.
async fn is_refused(stack: &Stack, pool: &Pool<'_>, name: &str) -> Result<()> {
    let address = stack.address(Kind::Scheduler);
    let labels = ["verb=\"filter\"", "outcome=\"error\""];
    let errors = || http::metric(address, "aliquot_scheduler_calls_total", &labels);
    let before = errors().await?;
    pool.create(name, &LIMITS).await?;
    let filtered = || async { Ok((errors().await? > before).then_some(())) };
    eventually(STALE, "a filter call that is refused", filtered).await?;
    let pods: Api<Pod> = Api::namespaced(stack.cluster.admin()?, pool.name);
    ensure!(node_of(&pods.get(name).await?).is_none(), "{name} is bound");
    Ok(())
}

async fn check(
    stack: &Stack,
    name: &'static str,
    play: impl AsyncFnOnce(&Proxy, &Pool<'_>) -> Result<()>,
) -> Result<()> {
    let pool = Pool::open(stack, name, &[(name.to_owned(), ONE)]).await?;
    with_proxy(stack, async |proxy| {
        pool.create("early", &LIMITS).await?;
        pool.bound("early").await?;
        play(proxy, &pool).await?;
        stack.wait_ready(Kind::Scheduler).await?;
        pool.bound("meanwhile").await?;
        stack.ledger_agrees().await.map(drop)
    })
    .await?;
    pool.close().await
}

/// The lists of nodes, then of pods, come late.
pub(crate) async fn before_the_first_list(stack: Arc<Stack>) -> Result<()> {
    check(&stack, "ready-first", async |proxy, pool| {
        stack.kill(Kind::Scheduler).await?;
        let mut nodes = proxy.trap(&[Traffic::List("nodes")]);
        let mut pods = proxy.trap(&[Traffic::List("pods")]);
        let play = async {
            let nodes = nodes.next().await?;
            unready(&stack, pool, "pods: still listing").await?;
            unready(&stack, pool, "nodes: still listing").await?;
            is_refused(&stack, pool, "meanwhile").await?;
            nodes.forward().await?.pass()?;
            unready(&stack, pool, "pods: still listing").await?;
            pods.next().await?.forward().await?.pass()
        };
        futures::try_join!(start(&stack, proxy), play).map(drop)
    })
    .await
}

/// The API server answers nothing any more, and then again.
pub(crate) async fn while_stale(stack: Arc<Stack>) -> Result<()> {
    check(&stack, "ready-stale", async |proxy, pool| {
        let refused = proxy.refuse(&EVERYTHING);
        proxy.break_watches();
        unready(&stack, pool, "pods: watch is stale").await?;
        unready(&stack, pool, "nodes: watch is stale").await?;
        is_refused(&stack, pool, "meanwhile").await?;
        drop(refused);
        Ok(())
    })
    .await
}
