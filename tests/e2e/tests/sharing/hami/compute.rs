//! HAMI-9: when a share of the compute is a limit, and when a process is killed, beside a monitor.
//!
//! A program of 50 kernels of 10 ms takes half a second of a free GPU, and five seconds at a tenth
//! of one.

use std::sync::Arc;
use std::time::Duration;

use aliquot_cluster::starvation::{Attempts, Measurement};
use aliquot_cluster::until;
use aliquot_cluster::wait::eventually;
use aliquot_e2e::clients::{REAL, beside, with_python};
use aliquot_e2e::stack::Stack;
use anyhow::{Result, ensure};
use futures::future::try_join_all;
use serde_json::{Value, json};

use super::world::{PATIENCE, annotated, over, run, takes, uuid};

const KERNELS: u32 = 50;
/// A tenth of the GPU is never faster.
const LIMITED: Duration = Duration::from_millis(3500);
/// A free GPU is slower only where the machine is crowded.
const FREE: Duration = Duration::from_millis(2500);
const MIB: u64 = 1 << 20;

/// A pod with a tenth of the compute of this GPU, and these variables of its own.
fn tenth(
    stack: &Stack,
    (namespace, name): (&str, &str),
    gpu: usize,
    variables: &[(&str, &str)],
) -> Result<Value> {
    let limits = [("gpu", "1"), ("gpumem", "3000"), ("gpucores", "10")];
    let mut pod = with_python(stack, namespace, name, &limits)?;
    let variables = variables.iter();
    pod["spec"]["containers"][0]["env"] = variables
        .map(|(name, value)| json!({"name": name, "value": value}))
        .collect();
    let gpu = uuid(stack, gpu)?;
    Ok(annotated(pod, "nvidia.com/use-gpuuuid", &gpu))
}

async fn is_limited(stack: &Stack, namespace: &str, name: &str) -> Result<()> {
    let took = takes(stack, namespace, name, KERNELS).await?;
    ensure!(took > LIMITED, "{name} took {took:?}");
    Ok(())
}

/// All of them at once are as fast as the GPU is.
async fn are_free(stack: &Stack, namespace: &str, names: &[&str]) -> Result<()> {
    let mut attempts = Attempts::new(format!("{names:?} without a limit"));
    loop {
        let measured = Measurement::of_machine();
        let all = names
            .iter()
            .map(|name| takes(stack, namespace, name, KERNELS));
        let took = try_join_all(all).await?;
        if took.iter().all(|took| *took < FREE) {
            return Ok(());
        }
        attempts.again(format!("{took:?}, allowed {FREE:?}"), measured.starved())?;
    }
}

/// HAMI-9.
pub(crate) async fn policies(stack: Arc<Stack>) -> Result<()> {
    const POLICY: &str = "GPU_CORE_UTILIZATION_POLICY";
    let stack = &*stack;
    stack.cluster.namespace("policies").await?;
    for (name, gpu, policy) in [("default", 0, 0), ("force", 1, 1), ("disable", 2, 2)] {
        let own = [(POLICY, name)];
        let pod = tenth(stack, ("policies", name), gpu, &own)?;
        let found = run(stack, pod).await?;
        ensure!(found.policy == policy, "{name}: {found:?}");
    }
    // Each is alone on its GPU.
    is_limited(stack, "policies", "force").await?;
    are_free(stack, "policies", &["default"]).await?;
    are_free(stack, "policies", &["disable"]).await?;
    over(stack, "policies").await?;
    for (name, killer, event) in [
        ("ended", "true", "GpuOomKilled"),
        ("spared", "false", "GpuMemoryAboveLimit"),
    ] {
        let own = [("ACTIVE_OOM_KILLER", killer)];
        run(stack, tenth(stack, ("policies", name), 0, &own)?).await?;
        let gpu = uuid(stack, 0)?;
        let used = || -> Result<u64> {
            let holders = stack.machine().process_usage(&gpu)?;
            Ok(holders.iter().map(|one| one.used / MIB).sum())
        };
        // Around the library, which would have refused it.
        let grows = [REAL, "init", "alloc,4000"];
        let checks = async {
            stack.wait_event("policies", name, &[event]).await?;
            eventually(PATIENCE, "its end, or its being spared", || async {
                let (used, lives) = (used()?, killer == "false");
                until!((used >= 4000) == lives, "{used} MiB in use");
                Ok(Some(()))
            })
            .await
        };
        beside(stack, ("policies", name), &grows, checks).await?;
        stack.cluster.delete_pod("policies", name).await?;
    }
    Ok(())
}
