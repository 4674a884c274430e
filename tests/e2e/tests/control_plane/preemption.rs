//! Pods of high priority preempt others on fake nodes. These have no kubelet, so pods that may be
//! evicted have no grace period.

use std::collections::BTreeSet;
use std::sync::Arc;

use aliquot_cluster::until;
use aliquot_cluster::wait::{PATIENCE, eventually};
use aliquot_e2e::pods::classes;
use aliquot_e2e::pool::{Pool, Shape};
use aliquot_e2e::proxy::{Proxy, Traffic};
use aliquot_e2e::stack::Stack;
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::proxied::{restart, with_proxy};

const PREEMPTION: &str = "aliquot.dev/preemption";
/// Of 81,920 MiB, 60,000 are free once three of four pods of 20,000 have ended.
const VICTIMS: usize = 3;

/// Two GPUs with four pods each, of which three must be evicted for `urgent`. The leader is killed
/// after the first: the next one carries the plan out, and makes no other.
pub(crate) async fn between_evictions(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    classes(stack).await?;
    let nodes = [("between-1".to_owned(), Shape::of_gpus(2))];
    let pool = Pool::open(stack, "between", &nodes).await?;
    let mut all = Vec::new();
    for number in 0..8 {
        let name = format!("low-{number}");
        running(stack, &pool, &name).await?;
        all.push(name);
    }
    with_proxy(stack, async |proxy| {
        kill_after_first(stack, proxy, &pool, &all).await
    })
    .await?;
    pool.close().await
}

async fn kill_after_first(
    stack: &Stack,
    proxy: &Proxy,
    pool: &Pool<'_>,
    all: &[String],
) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(stack.cluster.admin()?, pool.name);
    let plan = async || {
        let annotations = pods.get("urgent").await?.metadata.annotations;
        let text = annotations.and_then(|mut all| all.remove(PREEMPTION));
        let plan: Value = serde_json::from_str(&text.context("no plan")?)?;
        let victims = plan["victims"].as_array().context("victims")?.iter();
        let names = victims.filter_map(|victim| victim["name"].as_str().map(str::to_owned));
        Ok::<BTreeSet<String>, anyhow::Error>(names.collect())
    };
    let mut trap = proxy.trap(Traffic::Eviction);
    let urgent = ranked(pool, "urgent", "urgent", 60_000);
    stack.cluster.create_pod(urgent).await?;
    trap.next().await?.forward().await?.pass()?;
    // The next eviction never gets through.
    let stopped = trap.next().await?;
    let planned = plan().await?;
    ensure!(planned.len() == VICTIMS, "{planned:?}");
    let gone = ended(stack, pool, all).await?;
    ensure!(gone.len() == 1, "{gone:?} of {planned:?}");
    drop(stopped);
    drop(trap);
    restart(stack, proxy).await?;
    pool.bound("urgent").await?;
    let gone = eventually(PATIENCE, "the victims to be gone", || async {
        let gone = ended(stack, pool, all).await?;
        until!(gone.len() >= VICTIMS, "{gone:?}");
        Ok(Some(gone))
    })
    .await?;
    ensure!(gone == planned, "{gone:?}, planned {planned:?}");
    eventually(PATIENCE, "the plan to be taken away", || async {
        let annotations = pods.get("urgent").await?.metadata.annotations;
        let annotations = annotations.unwrap_or_default();
        until!(!annotations.contains_key(PREEMPTION), "{annotations:?}");
        Ok(Some(()))
    })
    .await?;
    let gone = ended(stack, pool, all).await?;
    ensure!(gone == planned, "{gone:?}, planned {planned:?}");
    stack.ledger_agrees().await.map(drop)
}

/// A pod of this class.
fn ranked(pool: &Pool<'_>, name: &str, class: &str, memory: u64) -> Value {
    let memory = memory.to_string();
    let mut pod = pool.pod(name, &[("gpu", "1"), ("gpumem", &memory)]);
    pod["spec"]["priorityClassName"] = json!(class);
    pod["spec"]["terminationGracePeriodSeconds"] = json!(0);
    pod
}

/// Creates a pod that may be evicted, waits until it is bound, and lets it run.
async fn running(stack: &Stack, pool: &Pool<'_>, name: &str) -> Result<()> {
    let pod = ranked(pool, name, "batch", 20_000);
    stack.cluster.create_pod(pod).await?;
    pool.bound(name).await?;
    let pods: Api<Pod> = Api::namespaced(stack.cluster.admin()?, pool.name);
    let status = json!({"status": {"phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}]}});
    let params = PatchParams::default();
    pods.patch_status(name, &params, &Patch::Strategic(status))
        .await?;
    Ok(())
}

/// Which of these pods are gone or ending.
async fn ended(stack: &Stack, pool: &Pool<'_>, names: &[String]) -> Result<BTreeSet<String>> {
    let pods: Api<Pod> = Api::namespaced(stack.cluster.admin()?, pool.name);
    let pods = pods.list(&ListParams::default()).await?.items.into_iter();
    let there = pods.filter(|pod| pod.metadata.deletion_timestamp.is_none());
    let there: BTreeSet<String> = there.filter_map(|pod| pod.metadata.name).collect();
    let gone = names.iter().filter(|name| !there.contains(*name));
    Ok(gone.cloned().collect())
}
