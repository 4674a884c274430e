//! Killed again and again while pods are bound.

use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_cluster::wait::eventually;
use aliquot_e2e::figures;
use aliquot_e2e::pool::{Pool, Shape};
use aliquot_e2e::stack::{Kind, Stack};
use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;

use super::split::split;

const SHAPE: Shape = Shape {
    gpus: 2,
    replicas: 10,
};
/// On the six GPUs fit nine of these each.
const LIMITS: [(&str, &str); 3] = [("gpu", "1"), ("gpumem", "9000"), ("gpucores", "5")];
const PODS: usize = 60;
const FIT: usize = 54;
const KILLS: usize = 5;
/// A restarted scheduler lives so many milliseconds at most.
const LIFE: u64 = 700;
/// Set to the seed of a failure to see it again.
const SEED: &str = "ALIQUOT_E2E_SEED";

/// Sixty pods at once, five kills at random moments.
pub(crate) async fn five_kills(stack: Arc<Stack>) -> Result<()> {
    let seed = match std::env::var(SEED) {
        Ok(seed) => seed.parse()?,
        Err(_) => fastrand::u64(..),
    };
    let moments = fastrand::Rng::with_seed(seed);
    let run = Box::pin(run(&stack, moments)).await;
    run.with_context(|| format!("{SEED}={seed}"))
}

async fn run(stack: &Stack, mut moments: fastrand::Rng) -> Result<()> {
    let nodes: Vec<_> = (0..3).map(|n| (format!("load-{n}"), SHAPE)).collect();
    let pool = Pool::open(stack, "load", &nodes).await?;
    let names: Vec<String> = (0..PODS).map(|n| format!("p{n}")).collect();
    let start = Instant::now();
    let kills = async {
        for _ in 0..KILLS {
            let end = Instant::now() + Duration::from_millis(moments.u64(..LIFE));
            let over = || async { Ok((Instant::now() >= end).then_some(())) };
            eventually(2 * Duration::from_millis(LIFE), "the moment", over).await?;
            stack.kill(Kind::Scheduler).await?;
            stack.start_scheduler(&[]).await?;
            let bound = stack.annotated_ledger().await?.pods.len();
            figures::report(&format!("{bound} bound at a restart"), start.elapsed());
        }
        Ok(())
    };
    let created = try_join_all(names.iter().map(|name| pool.create(name, &LIMITS)));
    futures::try_join!(created, kills)?;
    let refused = split(stack, &pool, FIT).await?;
    figures::report("60 pods bound or refused", start.elapsed());
    for name in &refused {
        // Ours may end with a killed process; kube-scheduler's own has the same text.
        pool.event(name, "CardInsufficientMemory").await?;
    }
    let ledger = stack.ledger_agrees().await?;
    ensure!(ledger.pods.len() == FIT, "{} allocated", ledger.pods.len());
    pool.close().await
}
