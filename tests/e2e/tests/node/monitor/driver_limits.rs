//! A driver with memory limits for cgroups limits a container whatever library its programs use; an
//! older one does not, which is reported.

use std::path::PathBuf;
use std::sync::Arc;

use aliquot_cluster::until;
use aliquot_cluster::wait::eventually;
use aliquot_e2e::clients::{check, nvidia_spec};
use aliquot_e2e::stack::{Kind, Stack};
use aliquot_gpusim::{STATE_FILE, place};
use anyhow::{Result, ensure};
use serde_json::json;

use super::running::{CONTEXT, MIB, PATIENCE, REAL, becomes, beside, figure, monitored, over, pod};
use crate::limits::limited_with;

const ENFORCED: &str = "aliquot_share_memory_enforced";
const OFFERED: &str = "aliquot_gpu_driver_limits";
const OLD: &str = "580.82.07";

/// A tenant that sheds the library is still stopped at its limit, and its neighbour is not.
pub(crate) async fn enforced_by_driver(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    monitored(stack, "walls").await?;
    pod(stack, "walls", "early", "3000").await?;
    becomes(stack, ENFORCED, "early", 1.0).await?;
    eventually(PATIENCE, "the older driver to offer nothing", || async {
        let offers = figure(stack, OFFERED, &[]).await?;
        until!(offers < 0.5, "{offers}");
        Ok(Some(()))
    })
    .await?;
    evades(stack, "early", "init: 0; alloc,4000: 0").await?;

    stack.terminate(Kind::Monitor).await?;
    stack.machine().set_driver("615.10")?;
    let outcome = async {
        limited_from_the_start(stack).await?;
        stack.start_monitor().await?;
        check_limits(stack).await
    }
    .await;
    stack.machine().set_driver(OLD)?;
    outcome?;
    over(stack, "walls").await
}

/// While no monitor runs, a container is limited by the hook.
async fn limited_from_the_start(stack: &Stack) -> Result<()> {
    let mut spec = nvidia_spec(stack)?;
    let library = library_for_hooks(stack)?;
    spec["containerEdits"]["mounts"][1]["hostPath"] = json!(library);
    limited_with(stack, &spec).await?;
    pod(stack, "walls", "first", "3000").await?;
    let stopped = "init: 0; alloc,3000: 2; alloc,2500: 0";
    evades(stack, "first", stopped).await
}

/// Checks these answers of a program that sheds the library.
async fn evades(stack: &Stack, pod: &str, script: &str) -> Result<()> {
    check(stack, "walls", pod, &format!("{REAL}: 0; {script}")).await
}

/// A copy of NVML beside which the machine is named: hooks have no environment of the simulator's.
fn library_for_hooks(stack: &Stack) -> Result<PathBuf> {
    let machine = stack.machine();
    let folder = machine.state().with_file_name("for-hooks");
    std::fs::create_dir_all(&folder)?;
    let state = machine.state().display().to_string();
    std::fs::write(folder.join(STATE_FILE), state)?;
    let library = folder.join("libnvidia-ml.so.1");
    std::fs::copy(place::library_path()?, &library)?;
    Ok(library)
}

async fn check_limits(stack: &Stack) -> Result<()> {
    pod(stack, "walls", "tenant", "3000").await?;
    pod(stack, "walls", "neighbour", "6000").await?;
    for name in ["early", "first", "tenant", "neighbour"] {
        by_driver(stack, name).await?;
    }
    let late = "started without the driver's limit";
    stack.wait_event("walls", "early", &[late]).await?;
    for name in ["first", "tenant", "neighbour"] {
        let events = stack.event_texts("walls", name).await?;
        ensure!(!events.iter().any(|text| text.contains(late)), "{events:?}");
    }
    // Within the limiter's own limit the driver's limit stops no allocation. First, as what an
    // evading program had stays charged until the next sample.
    let within = "init: 0; alloc,2480: 0; alloc,20: 2";
    check(stack, "walls", "tenant", within).await?;
    let stopped = "init: 0; alloc,3000: 2; alloc,2500: 0; alloc,100: 2";
    evades(stack, "tenant", stopped).await?;
    // Two programs have one limit.
    let second = async {
        let used = (2000.0 + CONTEXT) * MIB;
        becomes(stack, "aliquot_share_memory_used_bytes", "tenant", used).await?;
        evades(stack, "tenant", "init: 0; alloc,1000: 2").await
    };
    let allocates = [REAL, "init", "alloc,2000"];
    beside(stack, ("walls", "tenant"), &allocates, second).await?;
    evades(stack, "neighbour", "init: 0; alloc,5000: 0").await
}

async fn by_driver(stack: &Stack, name: &str) -> Result<()> {
    let pod = format!("pod=\"{name}\"");
    eventually(PATIENCE, &format!("the driver to limit {name}"), || async {
        let enforced = figure(stack, ENFORCED, &[&pod, "by=\"driver\""]).await?;
        until!(enforced > 0.5, "{enforced}");
        Ok(Some(()))
    })
    .await
}
