//! Memory beyond requests, which is lent: a pod gets what it requested from a borrower that frees it
//! when it is notified, and from one that is ended because it does not.

use std::sync::Arc;

use aliquot_cluster::until;
use aliquot_cluster::wait::eventually;
use aliquot_e2e::clients::{answers, with_python};
use aliquot_e2e::stack::Stack;
use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use super::running::{CONTEXT, MIB, PATIENCE, becomes, beside, figure, monitored, over};

const SPACE: &str = "lent";
const USED: &str = "aliquot_share_memory_used_bytes";

pub(crate) async fn called_back(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    // Longer than the borrower that frees memory needs.
    let grace = ["--burst-grace-seconds-in", "lent=8"];
    monitored(stack, SPACE, &grace).await?;
    example(stack).await?;
    share(stack, "owner", "40000", &[]).await?;
    let limit = ("aliquot.dev/gpumem-limit", "80000");
    let yields = ("aliquot.dev/burst", "yield");
    share(stack, "stays", "20000", &[limit]).await?;
    share(stack, "yields", "20000", &[limit, yields]).await?;
    let total = answers(stack, SPACE, "stays", &["init", "total"]).await?;
    ensure!(total[1] == "total: 0 80000", "{total:?}");

    let borrows = ["init", "yields", "alloc,60000"];
    let freed = returned(stack, "yields", 1.0, 0.0);
    beside(stack, (SPACE, "yields"), &borrows, freed).await?;
    // As soon as nothing is called back any more.
    let borrows = ["init", "ninit", "grown,60000"];
    let ended = async {
        returned(stack, "stays", 2.0, 1.0).await?;
        stack
            .wait_event(SPACE, "stays", &["GpuMemoryCalledBack"])
            .await
    };
    beside(stack, (SPACE, "stays"), &borrows, ended).await?;
    over(stack, SPACE).await
}

/// The example sees its limit.
async fn example(stack: &Stack) -> Result<()> {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/burst.yaml");
    let apply = ["apply", "-f", file];
    stack.cluster.kubectl(&apply).await?.success()?;
    stack.cluster.wait_running("default", "burst-pod").await?;
    let env = stack.environment("default", "burst-pod", "main").await?;
    let limit = env.get("CUDA_DEVICE_MEMORY_LIMIT_0");
    ensure!(limit.is_some_and(|limit| limit == "12000m"), "{env:?}");
    stack.cluster.delete_pod("default", "burst-pod").await
}

/// Waits until the borrower has what is idle; then the owner gets its request. Checks how often memory
/// was called back and how many processes were killed for it.
async fn returned(stack: &Stack, borrower: &str, called_back: f64, killed: f64) -> Result<()> {
    becomes(stack, USED, borrower, (60_000.0 + CONTEXT) * MIB).await?;
    let owner = answers(stack, SPACE, "owner", &["init", "alloc,39000"]).await?;
    ensure!(owner[1..] == ["alloc,39000: 0"], "{owner:?}");
    // The monitor calls back first, and shows that at the end of its sample.
    eventually(PATIENCE, "the call-back to be counted", || async {
        let found = [
            figure(stack, "aliquot_monitor_call_backs_total", &[]).await?,
            figure(
                stack,
                "aliquot_monitor_killed_processes_total",
                &["call-back"],
            )
            .await
            .unwrap_or(0.0),
        ];
        let expected = [called_back, killed];
        let mut both = found.iter().zip(expected);
        let is_reached = both.all(|(found, expected)| (found - expected).abs() < 0.5);
        until!(is_reached, "{found:?}, expected {expected:?}");
        Ok(Some(()))
    })
    .await
}

/// Starts a pod on the first GPU.
async fn share(
    stack: &Stack,
    name: &str,
    memory: &str,
    annotations: &[(&str, &str)],
) -> Result<()> {
    let limits = [("gpu", "1"), ("gpumem", memory), ("gpucores", "20")];
    let mut pod = with_python(stack, SPACE, name, &limits)?;
    let shown = stack.machine().show()?;
    let gpu = shown["gpus"][0]["uuid"].as_str().context("a GPU")?;
    pod["metadata"]["annotations"]["aliquot.dev/use-gpuuuid"] = json!(gpu);
    for (key, value) in annotations {
        pod["metadata"]["annotations"][*key] = json!(value);
    }
    stack.cluster.create_pod(pod).await?;
    stack.cluster.wait_running(SPACE, name).await.map(drop)
}
