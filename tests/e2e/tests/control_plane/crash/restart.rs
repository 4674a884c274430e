//! Killed with pods placed: the ledger come back from the pods' annotations.

use std::sync::Arc;
use std::time::Instant;

use aliquot_e2e::figures;
use aliquot_e2e::ledger::LedgerSummary;
use aliquot_e2e::pool::{GPU_MEMORY, Pool, Shape};
use aliquot_e2e::stack::{Kind, Stack};
use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;

use super::split::split;

const SHAPE: Shape = Shape {
    gpus: 2,
    replicas: 10,
};
/// MiB of each pod that fills what is left.
const FILL: u64 = 11_000;
/// So many fillers more than fit. Each of the two deleted pods, of less than 14,000 MiB, makes room
/// for at most two, as less than 11,000 MiB are free beside it.
const EXTRA: usize = 6;

/// Killed (-9) with 50 pods placed.
pub(crate) async fn fifty_pods(stack: Arc<Stack>) -> Result<()> {
    stack.ledger_is_empty().await?;
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

    let mut full = before.pods.len() + room(&stack, &before).await?;
    let fillers = full - before.pods.len() + EXTRA;
    let fillers: Vec<String> = (0..fillers).map(|n| format!("fill{n}")).collect();
    let memory = FILL.to_string();
    let limits = [("gpu", "1"), ("gpumem", memory.as_str()), ("gpucores", "1")];
    try_join_all(fillers.iter().map(|name| pool.create(name, &limits))).await?;
    split(&stack, &pool, full).await?;

    // Freed while the scheduler is down, and after: pods refused earlier are requeued, as many as
    // find room where the deleted pod was.
    for (name, is_down) in [("p48", true), ("p49", false)] {
        let ledger = without(&pool, name, stack.ledger_agrees().await?).await?;
        full = ledger.pods.len() + room(&stack, &ledger).await?;
        if is_down {
            stack.kill(Kind::Scheduler).await?;
        }
        stack.cluster.delete_pod("restart", name).await?;
        if is_down {
            stack.start_scheduler(&[]).await?;
        }
        split(&stack, &pool, full).await?;
        stack.ledger_agrees().await?;
    }
    pool.close().await
}

/// The ledger once this pod is gone.
async fn without(pool: &Pool<'_>, name: &str, mut ledger: LedgerSummary) -> Result<LedgerSummary> {
    let uid = pool.bound(name).await?.metadata.uid.context("a uid")?;
    let (_, amounts) = ledger.pods.remove(&uid).context("an allocation")?;
    for (gpu, amount) in amounts {
        *ledger.gpus.get_mut(&gpu).context("a GPU")? -= amount;
    }
    Ok(ledger)
}

/// How many fillers more fit by the ledger. All are alike, so that their order changes nothing.
async fn room(stack: &Stack, ledger: &LedgerSummary) -> Result<usize> {
    let capacity = stack.capacity().await?;
    ensure!(capacity.len() == 10, "{} gpus", capacity.len());
    let free = capacity.iter().map(|(gpu, total)| {
        let used = ledger.gpus.get(gpu).copied().unwrap_or_default();
        let memory = (GPU_MEMORY - used.memory) / FILL;
        memory.min(total.replicas - used.replicas)
    });
    Ok(usize::try_from(free.sum::<u64>())?)
}
