//! A full cluster on which pods come as others go.

use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_cluster::wait::{PATIENCE, eventually};
use aliquot_e2e::figures::report;
use aliquot_e2e::pool::Pool;
use aliquot_e2e::stack::Stack;
use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use kube::{Api, Client};

use crate::fill::SHAPE;
use crate::record::{Record, create, pod};

const NODES: usize = 10;
const SHARES: usize = 200;
const CYCLES: usize = 1_000;
/// Cycles under way at one time.
const CONCURRENT: usize = 8;
/// 99 of 100 freed shares are used within this.
const ALLOWED: Duration = Duration::from_secs(2);
/// And where the machine does other work: kube-scheduler's longest pause is 10 s.
const LATEST: Duration = Duration::from_secs(20);
/// Cycles that are evaluated together: in a quarter of them the machine had no other load.
const QUARTER: usize = CYCLES / 4;

/// A cycle creates a pod, which is refused, deletes the oldest bound pod, and waits until its own
/// is bound: by then the freed share went to its pod or to that of a concurrent cycle. The n-th
/// Binding after the start uses the n-th freed share.
pub(crate) async fn on_a_full_cluster(stack: Arc<Stack>) -> Result<()> {
    let nodes: Vec<_> = (0..NODES).map(|n| (format!("cycle-{n}"), SHAPE)).collect();
    let pool = Pool::open(&stack, "cycle", &nodes).await?;
    let client = stack.cluster.admin()?;
    let record = Record::start(client.clone(), pool.name);
    let name = |n: usize| format!("p{n}");
    let full = (0..SHARES).map(|n| pod(pool.name, &name(n))).collect();
    create(&client, pool.name, full).await?;
    record.bound(SHARES).await?;

    let start = Instant::now();
    stream::iter(0..CYCLES)
        .map(|n| cycle(&client, &record, pool.name, name(SHARES + n), name(n)))
        .buffer_unordered(CONCURRENT)
        .try_collect::<()>()
        .await?;
    record.bound(SHARES + CYCLES).await?;
    report("1,000 cycles on a full cluster", start.elapsed());
    let used = record.bindings().split_off(SHARES);
    let freed = record.ends();
    ensure!(freed.len() == CYCLES, "{} ends seen", freed.len());
    let waits = used.iter().zip(&freed);
    let mut waits: Vec<_> = waits
        .map(|(used, freed)| used.saturating_duration_since(*freed))
        .collect();
    let quarters = waits.chunks_mut(QUARTER).map(|quarter| passed(quarter, 99));
    let best = quarters.min().unwrap_or(Duration::MAX);
    let mut at = |percent: usize| passed(&mut waits, percent);
    for percent in [50, 99, 100] {
        report(
            &format!("freed shares used, {percent} of 100 within"),
            at(percent),
        );
    }
    ensure!(best < ALLOWED, "{best:?}, allowed {ALLOWED:?}");
    ensure!(at(99) < LATEST, "{:?}, allowed {LATEST:?}", at(99));
    stack.ledger_agrees().await?;
    drop(record);
    pool.close().await
}

/// What so many of 100 do not pass.
fn passed(waits: &mut [Duration], percent: usize) -> Duration {
    waits.sort_unstable();
    waits[(waits.len() - 1) * percent / 100]
}

async fn cycle(
    client: &Client,
    record: &Record,
    namespace: &str,
    new: String,
    old: String,
) -> Result<()> {
    create(client, namespace, vec![pod(namespace, &new)]).await?;
    wait_bound(record, &old).await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let at_once = DeleteParams::default().grace_period(0);
    let deleted = pods.delete(&old, &at_once).await;
    deleted.with_context(|| format!("delete {old}"))?;
    wait_bound(record, &new).await
}

async fn wait_bound(record: &Record, name: &str) -> Result<()> {
    eventually(PATIENCE, &format!("{name} to be bound"), || async {
        Ok(record.is_bound(name).then_some(()))
    })
    .await
}
