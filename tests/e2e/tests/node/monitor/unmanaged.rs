//! Unmanaged processes, and those of a container above its limit.

use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_cluster::until;
use aliquot_cluster::wait::eventually;
use aliquot_e2e::stack::{Kind, NodeOptions, Stack};
use anyhow::{Result, ensure};

use super::running::{
    CONTEXT, MIB, PATIENCE, REAL, becomes, beside, figure, monitored, over, pod, wait_event,
};

const UNMANAGED: &str = "aliquot_gpu_unmanaged_processes";
const USED: &str = "aliquot_share_memory_used_bytes";

/// The reporting time (two seconds, see `evasion.rs`) on a busy machine.
const LATEST: Duration = Duration::from_secs(30);

/// A program evades the limiter: reported and charged, and killed under the policy. The neighbour's
/// program stays.
pub(crate) async fn reported_and_killed(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    monitored(stack, "around", &[]).await?;
    pod(stack, "around", "tenant", "3000").await?;
    pod(stack, "around", "neighbour", "3000").await?;
    let around = [REAL, "init", "alloc,1000"];
    let reported = async {
        // From when the driver shows it; the program takes its time to start.
        becomes(stack, USED, "tenant", (1000.0 + CONTEXT) * MIB).await?;
        let begun = Instant::now();
        becomes(stack, UNMANAGED, "tenant", 1.0).await?;
        let took = begun.elapsed();
        ensure!(took < LATEST, "reported after {took:?}");
        becomes(
            stack,
            "aliquot_share_memory_overhead_bytes",
            "tenant",
            (1000.0 + CONTEXT) * MIB,
        )
        .await?;
        wait_event(stack, ("around", "tenant"), "GpuProcessUnmanaged").await?;
        stack.terminate(Kind::Monitor).await?;
        let kill = ["--on-unmanaged", "kill"];
        stack.start_monitor(&NodeOptions::default(), &kill).await?;
        becomes(stack, USED, "tenant", 0.0).await?;
        wait_event(stack, ("around", "tenant"), "GpuProcessEnded").await?;
        becomes(stack, USED, "neighbour", (100.0 + CONTEXT) * MIB).await
    };
    let tenant = beside(stack, ("around", "tenant"), &around, reported);
    let allocates = ["init", "alloc,100"];
    beside(stack, ("around", "neighbour"), &allocates, tenant).await?;
    let ended = figure(
        stack,
        "aliquot_monitor_killed_processes_total",
        &["unmanaged"],
    )
    .await?;
    ensure!((ended - 1.0).abs() < 0.5, "{ended}");
    over(stack, "around").await
}

/// A container above its limit loses the program that grew last, and no other; without the OOM
/// killer it is only reported.
pub(crate) async fn above_the_limit(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    monitored(stack, "above", &[]).await?;
    pod(stack, "above", "tenant", "3000").await?;
    let grower = [REAL, "init", "alloc,3000"];
    let killed = eventually(PATIENCE, "the grower to be killed", || async {
        let oom = figure(stack, "aliquot_monitor_killed_processes_total", &["oom"]).await?;
        until!((oom - 1.0).abs() < 0.5, "{oom} killed");
        Ok(Some(()))
    });
    let ended = async {
        becomes(stack, USED, "tenant", (1000.0 + CONTEXT) * MIB).await?;
        beside(stack, ("above", "tenant"), &grower, killed).await?;
        wait_event(stack, ("above", "tenant"), "GpuOomKilled").await?;
        becomes(stack, USED, "tenant", (1000.0 + CONTEXT) * MIB).await
    };
    beside(stack, ("above", "tenant"), &["init", "alloc,1000"], ended).await?;
    over(stack, "above").await
}
