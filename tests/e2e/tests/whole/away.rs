//! Aliquot's webhook is down, for longer than the lifetime of the certificates that the API server
//! knows. Everything without a GPU is created and runs; a pod with one is refused with a reason,
//! and is created by its controller when the webhook is back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_cluster::until;
use aliquot_cluster::wait::{eventually, sleep};
use aliquot_e2e::figures::report;
use aliquot_e2e::pods::simple;
use aliquot_e2e::stack::{Kind, Stack};
use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use crate::seen;
use crate::workloads::{applied, cleared, get, workload};

const NAMESPACE: &str = "away";
const PATIENCE: Duration = Duration::from_mins(3);
/// Lifetime of a CA; a serving certificate lives half as long.
const LIFE: Duration = Duration::from_secs(6);
/// The kubelet's own time for a pod on a busy machine, without the five seconds of a call to a
/// webhook.
const RUNS: Duration = Duration::from_mins(1);
const WEBHOOK_FAILED: &str = "failed calling webhook \"pods.aliquot.dev\"";

/// Waits until this field of an object is 1.
async fn is_one(stack: &Stack, what: &str, field: &str) -> Result<()> {
    eventually(RUNS, &format!("{field} of {what} to be 1"), || async {
        let object = get(stack, NAMESPACE, what).await?;
        until!(object["status"][field] == 1, "{}", object["status"]);
        Ok(Some(()))
    })
    .await
}

pub(crate) async fn for_long(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    stack.cluster.namespace(NAMESPACE).await?;
    seen::create(stack, NAMESPACE, "running", 10000).await?;
    let before = seen::runs(stack, (NAMESPACE, "running"), |_| true).await?;
    stack.terminate(Kind::Webhook).await?;
    let certificate = format!("{}s", LIFE.as_secs() / 2);
    let ca = format!("{}s", LIFE.as_secs());
    let lifetimes = ["--leaf-lifetime", &*certificate, "--ca-lifetime", &*ca];
    stack.start_webhook(&lifetimes).await?;
    stack.kill(Kind::Webhook).await?;
    // Until the certificates have ended.
    sleep(2 * LIFE).await;
    let outcome = without(stack).await;
    // First of all back to what the next scenario expects.
    stack.start_webhook(&[]).await?;
    outcome?;

    let back = Instant::now();
    is_one(stack, "deployment/shared", "readyReplicas").await?;
    report(
        "the webhook is back, to the waiting Deployment's pod running",
        back.elapsed(),
    );
    seen::runs(stack, (NAMESPACE, "running"), |now| *now == before).await?;
    cleared(stack, NAMESPACE).await
}

/// While it is away.
async fn without(stack: &Stack) -> Result<()> {
    let none = json!({});
    let began = Instant::now();
    let others = [
        workload(NAMESPACE, "Deployment", "plain", &none),
        workload(NAMESPACE, "DaemonSet", "everywhere", &none),
        workload(NAMESPACE, "Job", "once", &none),
    ];
    applied(stack, "others", &others).await?;
    let bare = stack.refusal(simple(NAMESPACE, "bare", &[])).await?;
    report("four workloads without a GPU created", began.elapsed());
    ensure!(bare.is_none(), "the plain pod: {bare:?}");
    is_one(stack, "deployment/plain", "readyReplicas").await?;
    is_one(stack, "daemonset/everywhere", "numberReady").await?;
    is_one(stack, "job/once", "succeeded").await?;
    stack.cluster.wait_running(NAMESPACE, "bare").await?;
    report("the same, to all of them running or done", began.elapsed());

    // A pod that requests a GPU is refused with a reason, and its controller gets an event.
    let refused = stack
        .refusal(simple(NAMESPACE, "gpu", &[("gpu", "1")]))
        .await?;
    let refused = refused.context("a GPU pod was admitted without a review")?;
    ensure!(refused.contains(WEBHOOK_FAILED), "{refused}");
    let limits = json!({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 5000});
    let shared = workload(NAMESPACE, "Deployment", "shared", &limits);
    applied(stack, "shared", &[shared]).await?;
    eventually(PATIENCE, "the Deployment's events to report it", || async {
        let events = get(stack, NAMESPACE, "events").await?;
        let events = events["items"].as_array().context("a list")?.iter();
        let reported = events
            .filter(|event| event["reason"] == "FailedCreate")
            .filter_map(|event| event["message"].as_str());
        let reported: Vec<&str> = reported.collect();
        until!(
            reported.iter().any(|text| text.contains(WEBHOOK_FAILED)),
            "{reported:?}"
        );
        Ok(Some(()))
    })
    .await
}
