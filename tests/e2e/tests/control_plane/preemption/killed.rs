//! The leader is killed in the middle of a plan: the next one carries it out, and makes no other.

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
use serde_json::{Value, json};

use super::ranks::{PREEMPTION, ended, plan_is_gone, ranked, running};
use crate::proxied::{restart, with_proxy};

const PAIR: Shape = Shape {
    gpus: 2,
    replicas: 10,
};
/// Of 81,920 MiB, 60,000 are free once three of four pods of 20,000 have ended.
const VICTIMS: usize = 3;

/// Two GPUs with four pods each, of which three must be evicted for `urgent`: the kill is after the
/// first.
pub(crate) async fn between_evictions(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    classes(stack).await?;
    let pool = Pool::open(stack, "between", &[("between-1".to_owned(), PAIR)]).await?;
    let mut all = Vec::new();
    for number in 0..8 {
        let name = format!("low-{number}");
        running(
            stack,
            &pool,
            ranked(&pool, &name, "batch", 20_000, json!(null)),
        )
        .await?;
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
    let urgent = ranked(pool, "urgent", "urgent", 60_000, json!(null));
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
        let gone: BTreeSet<_> = ended(stack, pool, all).await?.into_iter().collect();
        until!(gone.len() >= VICTIMS, "{gone:?}");
        Ok(Some(gone))
    })
    .await?;
    ensure!(gone == planned, "{gone:?}, planned {planned:?}");
    plan_is_gone(stack, pool, "urgent").await?;
    let gone: BTreeSet<_> = ended(stack, pool, all).await?.into_iter().collect();
    ensure!(gone == planned, "{gone:?}, planned {planned:?}");
    stack.ledger_agrees().await.map(drop)
}
