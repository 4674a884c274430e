//! Figures against the simulator's own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_cluster::starvation::Attempts;
use aliquot_cluster::until;
use aliquot_cluster::wait::eventually;
use aliquot_e2e::http;
use aliquot_e2e::stack::{Kind, NODE, Stack};
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tokio::process::Command;

use super::running::{CONTEXT, MIB, PATIENCE, becomes, beside, monitored, over, pod};

/// What the library takes a context to cost.
const THOUGHT: f64 = 512.0;

/// Four pods of different limits, each with its own load: memory in use, limits, clients, and a
/// scrape within 20 ms.
pub(crate) async fn four_pods(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    monitored(stack, "figures", &["--compat-metrics", "true"]).await?;
    for (name, memory) in [("a", "2000"), ("b", "3000"), ("c", "4000"), ("d", "8000")] {
        pod(stack, "figures", name, memory).await?;
    }
    let check = |name: &'static str, limit: f64, took: f64| async move {
        becomes(stack, "aliquot_share_memory_limit_bytes", name, limit * MIB).await?;
        let used = (took + CONTEXT) * MIB;
        becomes(stack, "aliquot_share_memory_used_bytes", name, used).await?;
        let tracked = (took + THOUGHT) * MIB;
        becomes(stack, "aliquot_share_memory_tracked_bytes", name, tracked).await?;
        becomes(stack, "aliquot_share_memory_overhead_bytes", name, 0.0).await?;
        becomes(stack, "hami_vgpu_memory_used_bytes", name, used).await?;
        becomes(stack, "aliquot_share_core_limit_ratio", name, 0.2).await?;
        becomes(stack, "aliquot_share_clients", name, 1.0).await
    };
    let all = async {
        check("a", 2000.0, 1000.0).await?;
        check("b", 3000.0, 2000.0).await?;
        check("c", 4000.0, 100.0).await?;
        check("d", 8000.0, 7000.0).await?;
        top(stack).await?;
        scrapes_are_quick(stack).await
    };
    let d = beside(stack, ("figures", "d"), &["init", "alloc,7000"], all);
    let c = beside(stack, ("figures", "c"), &["init", "alloc,100"], d);
    let b = beside(stack, ("figures", "b"), &["init", "alloc,2000"], c);
    beside(stack, ("figures", "a"), &["init", "alloc,1000"], b).await?;
    over(stack, "figures").await
}

/// `kubectl aliquot top pods` shows what the monitor measures of `b`, in whole MiB; the part of its time
/// in which it is throttled once the monitor has sampled it for two seconds.
async fn top(stack: &Stack) -> Result<()> {
    eventually(PATIENCE, "top to know what b uses", || async {
        let used = used_by_b(stack).await?;
        until!(used["memory"] == 2416, "{used}");
        until!(used["sm"].is_u64() && used["throttled"] == 0, "{used}");
        Ok(Some(()))
    })
    .await
}

async fn used_by_b(stack: &Stack) -> Result<Value> {
    let program = stack.program(Kind::Scheduler);
    let mut command = Command::new(program.with_file_name("kubectl-aliquot"));
    command.args(["top", "pods", "-n", "figures", "-o", "json"]);
    command.arg("--kubeconfig");
    command.arg(stack.cluster.kubeconfig());
    let monitor = format!("{NODE}=http://{}", stack.address(Kind::Monitor));
    let output = command.args(["--monitor", &monitor]).kill_on_drop(true);
    let output = tokio::time::timeout(PATIENCE, output.output()).await??;
    ensure!(output.status.success(), "{output:?}");
    let pods: Value = serde_json::from_slice(&output.stdout)?;
    let mut pods = pods.as_array().into_iter().flatten();
    let b = pods.find(|pod| pod["namespace"] == "figures" && pod["name"] == "b");
    let b = b.context("the pod")?;
    let used = b["usage"].as_object().into_iter().flatten().next();
    let (_, used) = used.with_context(|| b.to_string())?;
    Ok(used.clone())
}

/// The median of a few scrapes.
async fn scrapes_are_quick(stack: &Stack) -> Result<()> {
    const QUICK: Duration = Duration::from_millis(100);
    let mut attempts = Attempts::new("a scrape of the monitor");
    loop {
        let measured = stack.measure_starvation(&[Kind::Monitor], &[]).await?;
        let mut times = Vec::new();
        for _ in 0..9 {
            let begun = Instant::now();
            http::get(stack.address(Kind::Monitor), "/metrics").await?;
            times.push(begun.elapsed());
        }
        times.sort();
        if times[4] < QUICK {
            return Ok(());
        }
        attempts.again(format!("{times:?}, allowed {QUICK:?}"), measured.starved())?;
    }
}
