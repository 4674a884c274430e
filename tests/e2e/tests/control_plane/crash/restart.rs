//! Killed with pods placed: the ledger come back from the pods' annotations.

use std::sync::Arc;
use std::time::Instant;

use aliquot_e2e::figures;
use aliquot_e2e::ledger::LedgerSummary;
use aliquot_e2e::pool::{GPU_MEMORY, Pool, Shape};
use aliquot_e2e::stack::{Kind, Stack};
use anyhow::{Result, ensure};
use futures::future::try_join_all;

use super::split::split;

const SHAPE: Shape = Shape {
    gpus: 2,
    replicas: 10,
};
/// MiB of each pod that fills what is left.
const FILL: u64 = 11_000;
/// So many more than fit.
const EXTRA: u64 = 4;

/// Killed (-9) with 50 pods placed.
pub(crate) async fn fifty_pods(stack: Arc<Stack>) -> Result<()> {
    let nodes: Vec<_> = (0..5).map(|n| (format!("restart-{n}"), SHAPE)).collect();
    let pool = Pool::open(&stack, "restart", &nodes).await?;
    let names: Vec<String> = (0..50).map(|n| format!("p{n}")).collect();
    let created = names.iter().enumerate().map(async |(n, name)| {
        let memory = (1000 + 250 * n).to_string();
        let limits = [("gpu", "1"), ("gpumem", &memory), ("gpucores", "2")];
        pool.create(name, &limits).await
    });
    try_join_all(created).await?;
    try_join_all(names.iter().map(|name| pool.bound(name))).await?;
    let before = stack.ledger_agrees().await?;
    ensure!(before.pods.len() == 50, "{} allocated", before.pods.len());

    stack.kill(Kind::Scheduler).await?;
    let start = Instant::now();
    stack.start_scheduler(&[]).await?;
    figures::report("killed to ready", start.elapsed());
    // Ready means complete: the first statement already is.
    let after = stack.scheduler_ledger().await?;
    ensure!(after == before, "before {before:?}, after {after:?}");

    let fits = free_shares(&stack, &before).await?;
    let fillers: Vec<String> = (0..fits + EXTRA).map(|n| format!("fill{n}")).collect();
    let full = 50 + usize::try_from(fits)?;
    let memory = FILL.to_string();
    let limits = [("gpu", "1"), ("gpumem", memory.as_str()), ("gpucores", "1")];
    try_join_all(fillers.iter().map(|name| pool.create(name, &limits))).await?;
    split(&stack, &pool, full).await?;
    stack.ledger_agrees().await?;

    // Freed while the scheduler is down, and after: pods refused earlier are requeued.
    stack.kill(Kind::Scheduler).await?;
    stack.cluster.delete_pod("restart", "p48").await?;
    stack.start_scheduler(&[]).await?;
    split(&stack, &pool, full).await?;
    stack.ledger_agrees().await?;
    stack.cluster.delete_pod("restart", "p49").await?;
    split(&stack, &pool, full).await?;
    stack.ledger_agrees().await?;
    pool.close().await
}

/// How many fillers still fit by the ledger.
async fn free_shares(stack: &Stack, ledger: &LedgerSummary) -> Result<u64> {
    let capacity = stack.capacity().await?;
    ensure!(capacity.len() == 10, "{} gpus", capacity.len());
    let free = capacity.iter().map(|(gpu, total)| {
        let used = ledger.gpus.get(gpu).copied().unwrap_or_default();
        let memory = (GPU_MEMORY - used.memory) / FILL;
        memory.min(total.replicas - used.replicas)
    });
    Ok(free.sum())
}
