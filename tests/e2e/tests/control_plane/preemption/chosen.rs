//! Which pods are evicted for which.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use aliquot_cluster::wait::{PATIENCE, eventually, throughout};
use aliquot_e2e::figures::report;
use aliquot_e2e::pods::{allocation, classes, simple};
use aliquot_e2e::pool::{Pool, Shape, node_of};
use aliquot_e2e::stack::Stack;
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::time::Instant;

use super::ranks::{ended, only_on, plan_is_gone, ranked, running, there};

const PAIR: Shape = Shape {
    gpus: 2,
    replicas: 10,
};
const ONE: Shape = Shape {
    gpus: 1,
    replicas: 10,
};
/// Ten of these fill a GPU of 81,920 MiB.
const TENTH: u64 = 8_192;
/// Nothing may happen within this time.
const QUIET: Duration = Duration::from_secs(8);

/// 60,000 MiB on a full pair of GPUs, of which no replica is left either.
pub(crate) async fn full_pair(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    classes(stack).await?;
    let pool = Pool::open(stack, "pair", &[("pair-1".to_owned(), PAIR)]).await?;
    let mut all = Vec::new();
    let mut gpus: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let pods: Api<Pod> = Api::namespaced(stack.cluster.admin()?, pool.name);
    for number in 0..20 {
        let class = if number % 4 < 2 { "batch" } else { "normal" };
        let name = format!("{class}-{number:02}");
        let pod = ranked(&pool, &name, class, TENTH, json!(null));
        running(stack, &pool, pod).await?;
        let allocation = allocation(&pods.get(&name).await?)?;
        let grant = &allocation.grants("main").context("a share")?[0];
        let gpu = gpus.entry(grant.gpu.to_string()).or_default();
        gpu.insert(name.clone());
        all.push(name);
    }
    let start = Instant::now();
    let urgent = ranked(&pool, "urgent", "urgent", 60_000, json!(null));
    stack.cluster.create_pod(urgent).await?;
    pool.bound("urgent").await?;
    report("a pod bound that preempted", start.elapsed());
    // 60,000 of 81,920 MiB need eight of the ten pods of one GPU, as many of them batch as any has.
    let gone = ended(stack, &pool, &all).await?;
    let of_one = |gpu: &BTreeSet<String>| gone.iter().all(|name| gpu.contains(name));
    ensure!(
        gone.len() == 8 && gpus.values().any(of_one),
        "{gone:?} of {gpus:?}"
    );
    let low = |names: &mut dyn Iterator<Item = &String>| {
        names.filter(|name| name.starts_with("batch")).count()
    };
    let most = gpus.values().map(|gpu| low(&mut gpu.iter())).max();
    ensure!(Some(low(&mut gone.iter())) == most, "{gone:?} of {gpus:?}");
    for name in &gone {
        let event = pool.event(name, "Preempted: ").await?;
        ensure!(event.contains("pair/urgent"), "{event}");
    }
    let event = pool.event("urgent", "Preempting: ").await?;
    ensure!(gone.iter().all(|name| event.contains(name)), "{event}");
    plan_is_gone(stack, &pool, "urgent").await?;
    stack.ledger_agrees().await?;
    pool.close().await
}

/// No pod is evicted within this time.
async fn quiet(stack: &Stack, pool: &Pool<'_>, all: &[&str]) -> Result<()> {
    let all: BTreeSet<String> = all.iter().map(|name| (*name).to_owned()).collect();
    throughout(QUIET, || async {
        let there = there(stack, pool).await?;
        ensure!(there == all, "{there:?} instead of {all:?}");
        Ok(())
    })
    .await
}

/// Waits until kube-scheduler knows that a node takes no more pods: it tries one without a GPU.
async fn is_closed(stack: &Stack, pool: &Pool<'_>, node: &str) -> Result<()> {
    let cluster = &stack.cluster;
    eventually(PATIENCE, "the taint to be known", || async {
        let mut probe = simple(pool.name, "probe", &[]);
        probe["spec"]["affinity"] = only_on(node)["affinity"].take();
        cluster.create_pod(probe).await?;
        let is_tried = |pod: &Pod| {
            let status = pod.status.as_ref();
            let all = status.and_then(|status| status.conditions.as_ref());
            Ok(all.is_some_and(|all| all.iter().any(|one| one.type_ == "PodScheduled")))
        };
        let tried = cluster.wait_pod(pool.name, "probe", "the probe to be tried", is_tried);
        let tried = tried.await?;
        cluster.delete_pod(pool.name, "probe").await?;
        Ok(node_of(&tried).is_none().then_some(()))
    })
    .await
}

/// A node that the pod may not go to is not emptied for it.
pub(crate) async fn tainted(stack: Arc<Stack>) -> Result<()> {
    classes(&stack).await?;
    let nodes = ["taint-closed", "taint-open"].map(|name| (name.to_owned(), ONE));
    let pool = Pool::open(&stack, "taint", &nodes).await?;
    // The cheapest victim, by far, is on the node that gets a taint.
    let cheap = ranked(&pool, "cheap", "batch", 70_000, only_on("taint-closed"));
    running(&stack, &pool, cheap).await?;
    for name in ["dear-0", "dear-1"] {
        let dear = ranked(&pool, name, "normal", 40_000, only_on("taint-open"));
        running(&stack, &pool, dear).await?;
    }
    let taint = json!({"spec": {"taints": [{"key": "closed", "effect": "NoSchedule"}]}});
    let nodes: Api<Node> = Api::all(stack.cluster.admin()?);
    let params = PatchParams::default();
    nodes
        .patch("taint-closed", &params, &Patch::Merge(taint))
        .await?;
    is_closed(&stack, &pool, "taint-closed").await?;
    stack
        .cluster
        .create_pod(ranked(&pool, "urgent", "urgent", 60_000, json!(null)))
        .await?;
    let bound = pool.bound("urgent").await?;
    ensure!(node_of(&bound) == Some("taint-open"), "{bound:?}");
    let left: BTreeSet<_> = ["cheap", "urgent"].map(str::to_owned).into();
    let there_now = there(&stack, &pool).await?;
    ensure!(there_now == left, "{there_now:?}");
    let closed = ranked(&pool, "nowhere", "normal", 70_000, only_on("taint-closed"));
    stack.cluster.create_pod(closed).await?;
    let pods: Api<Pod> = Api::namespaced(stack.cluster.admin()?, pool.name);
    quiet(&stack, &pool, &["cheap", "urgent", "nowhere"]).await?;
    ensure!(node_of(&pods.get("nowhere").await?).is_none());
    pool.close().await
}
