//! Which pods are evicted for which.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aliquot_e2e::figures::report;
use aliquot_e2e::pods::{allocation, classes};
use aliquot_e2e::pool::{Pool, Shape};
use aliquot_e2e::stack::Stack;
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use serde_json::json;
use tokio::time::Instant;

use super::ranks::{ended, plan_is_gone, ranked, running};

const PAIR: Shape = Shape {
    gpus: 2,
    replicas: 10,
};
/// Ten of these fill a GPU of 81,920 MiB.
const TENTH: u64 = 8_192;

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
