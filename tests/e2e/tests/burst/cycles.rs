//! A full cluster on which pods come as others go.

use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_cluster::starvation::Attempts;
use aliquot_cluster::wait::{PATIENCE, eventually};
use aliquot_e2e::figures::report;
use aliquot_e2e::pool::Pool;
use aliquot_e2e::stack::{Kind, Stack};
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

    let mut attempts = Attempts::new("99 of 100 freed shares are used at once");
    for attempt in 0.. {
        let first = attempt * CYCLES;
        let cluster = ["scheduler", "apiserver", "etcd"];
        let measured = stack
            .measure_starvation(&[Kind::Scheduler], &cluster)
            .await?;
        let start = Instant::now();
        stream::iter(first..first + CYCLES)
            .map(|n| cycle(&client, &record, pool.name, name(SHARES + n), name(n)))
            .buffer_unordered(CONCURRENT)
            .try_collect::<()>()
            .await?;
        record.bound(SHARES + first + CYCLES).await?;
        report("1,000 cycles on a full cluster", start.elapsed());
        let starved = measured.starved();
        let used = record.bindings().split_off(SHARES + first);
        let freed = record.ends().split_off(first);
        ensure!(freed.len() == CYCLES, "{} ends seen", freed.len());
        let waits = used.iter().zip(&freed);
        let mut waits: Vec<_> = waits
            .map(|(used, freed)| used.saturating_duration_since(*freed))
            .collect();
        let mut at = |percent: usize| passed(&mut waits, percent);
        for percent in [50, 99, 100] {
            report(
                &format!("freed shares used, {percent} of 100 within"),
                at(percent),
            );
        }
        let most = at(99);
        if most < ALLOWED {
            break;
        }
        attempts.again(format!("{most:?}, allowed {ALLOWED:?}"), starved)?;
    }
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
