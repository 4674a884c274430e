//! As many pods as there are shares, created before the last of the capacity.

use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_cluster::until;
use aliquot_cluster::wait::{PATIENCE, eventually};
use aliquot_e2e::figures::report;
use aliquot_e2e::http::metric;
use aliquot_e2e::pool::{Pool, Shape};
use aliquot_e2e::stack::{Kind, Stack};
use anyhow::{Result, ensure};

use crate::record::{Record, conflicts, create, pod};

/// Twenty shares a node, limited by the GPUs' memory. With only twenty replicas kube-scheduler
/// would refuse pods by itself.
pub(crate) const SHAPE: Shape = Shape {
    gpus: 2,
    replicas: 20,
};
const SHARES: usize = 20;
/// Nodes that are there before the pods, and after them.
const NODES: usize = 50;
/// Longest time in which pods wait and none is bound: kube-scheduler's longest pause is 10 s.
const STALL: Duration = Duration::from_secs(20);
pub(crate) async fn exactly(stack: Arc<Stack>) -> Result<()> {
    stack.ledger_is_empty().await?;
    let client = stack.cluster.admin()?;
    let nodes =
        |name: &str| -> Vec<_> { (0..NODES).map(|n| (format!("{name}-{n}"), SHAPE)).collect() };
    let pods = 2 * NODES * SHARES;
    let first = Pool::open(&stack, "burst", &nodes("burst")).await?;
    let record = Record::start(client.clone(), first.name);
    let before = conflicts(&stack).await?;
    let start = Instant::now();
    let burst = (0..pods)
        .map(|n| pod(first.name, &format!("p{n}")))
        .collect();
    create(&client, first.name, burst).await?;
    record.bound(pods / 2).await?;
    report(
        "1,000 of 2,000 pods bound, from the first one's creation",
        start.elapsed(),
    );
    eventually(PATIENCE, "the others to be refused", || async {
        let refused = metric(
            stack.address(Kind::Scheduler),
            "aliquot_scheduler_refused_pods",
            &[],
        )
        .await?;
        until!(
            format!("{refused:.0}") == (pods / 2).to_string(),
            "{refused}"
        );
        Ok(Some(()))
    })
    .await?;

    let second = Pool::open(&stack, "late", &nodes("late")).await?;
    let appeared = Instant::now();
    record.bound(pods).await?;
    let bindings = record.bindings();
    let last = bindings.last().copied().unwrap_or(appeared);
    report(
        "the other 1,000 bound, from the last capacity",
        last.saturating_duration_since(appeared),
    );
    let waits = bindings.windows(2).filter(|pair| pair[1] > appeared);
    let stall = waits
        .map(|pair| pair[1] - pair[0].max(appeared))
        .max()
        .unwrap_or_default();
    report("longest time with waiting pods and no Binding then", stall);
    ensure!(stall < STALL, "{stall:?}, allowed {STALL:?}");
    let met = conflicts(&stack).await? - before;
    report(
        &format!("{met} of {pods} Bindings met a full node;"),
        Duration::ZERO,
    );
    ensure!(
        met * 100.0 < f64::from(u32::try_from(pods)?),
        "{met} conflicts"
    );
    let ledger = stack.ledger_agrees().await?;
    ensure!(ledger.pods.len() == pods, "{} allocated", ledger.pods.len());
    drop(record);
    first.close().await?;
    second.close().await
}
