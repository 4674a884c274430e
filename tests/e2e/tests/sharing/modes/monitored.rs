//! The monitor on a node whose GPUs are shared in every mode: it attributes each process and its
//! memory, by MPS, on an instance, in time slices and alone.

use std::sync::Arc;

use aliquot_cluster::until;
use aliquot_cluster::wait::eventually;
use aliquot_e2e::clients::{
    REAL, beside, offer_driver, open_machine, script_until_released, with_python,
};
use aliquot_e2e::http;
use aliquot_e2e::measured::becomes;
use aliquot_e2e::prometheus::OF_MODES;
use aliquot_e2e::stack::{Kind, NodeOptions, Stack};
use anyhow::Result;
use futures::future::{Either, join_all, select};

use super::PLAIN;
use super::mig::{PATIENCE, SMALL, plain};
use super::mps::{start, uuid, wait_replicas};

const SPACE: &str = "monitored";
const MIB: f64 = 1_048_576.0;
/// MiB that the simulated driver takes for a context; a client of MPS shares the server's.
const CONTEXT: f64 = 416.0;
/// MiB that each program takes.
const TAKEN: f64 = 500.0;
/// MiB that a client of MPS has which evades the limiter.
const EVADING: f64 = 100.0 + CONTEXT / 8.0;
const USED: &str = "aliquot_share_memory_used_bytes";
const UNMANAGED: &str = "aliquot_gpu_unmanaged_processes";

/// GPU 0 by MPS, 1 partitioned, 2 in time slices, 3 whole, 4 with dynamic MIG.
const PROFILE: &str = "
apiVersion: aliquot.dev/v1alpha1
default: here
profiles:
  here:
    gpus:
    - {select: {index: 0}, mode: mps, replicas: 4}
    - {select: {index: 1}, mode: mig, layout: [{profile: 1g.5gb, count: 2}]}
    - {select: {index: 2}, mode: timeslice, replicas: 4}
    - {select: {index: 3}, mode: exclusive}
    - {select: {index: 4}, mode: mig, dynamic: true, allow: [1g.10gb]}
    rest: vgpu
";

/// A pod on each kind of GPU: its name, mode, GPU (`None`: whichever instance it gets) and
/// limits, and MiB that its program uses.
type ModePod = (
    &'static str,
    &'static str,
    Option<usize>,
    &'static [(&'static str, &'static str)],
    f64,
);

const PODS: &[ModePod] = &[
    (
        "client",
        "mps",
        Some(0),
        &[("gpu", "1"), ("gpumem", "5000")],
        TAKEN + CONTEXT / 8.0,
    ),
    (
        "instance",
        // No other pod has it.
        "exclusive",
        None,
        &[("mig-1g.5gb", "1")],
        TAKEN + CONTEXT,
    ),
    (
        "turns",
        "timeslice",
        Some(2),
        &[("gpu", "1")],
        TAKEN + CONTEXT,
    ),
    (
        "whole",
        "exclusive",
        Some(3),
        &[("gpu", "1")],
        TAKEN + CONTEXT,
    ),
    (
        "share",
        "vgpu",
        Some(5),
        &[("gpu", "1"), ("gpumem", "3000")],
        TAKEN + CONTEXT,
    ),
];

/// Attribution in every mode, and the metrics that only these have.
pub(crate) async fn figures(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    stack.cluster.namespace(SPACE).await?;
    let options = |profiles: &str, limited| NodeOptions {
        limited,
        profiles: Some(profiles.to_owned()),
        ..NodeOptions::default()
    };
    offer_driver(stack)?;
    stack.terminate(Kind::DevicePlugin).await?;
    let limited = options(PROFILE, true);
    stack.start_device_plugin_unready(&limited).await?;
    // 4 clients, 4 time slices, one whole GPU, three GPUs in shares.
    wait_replicas(stack, "nvidia.com/gpu", Some("39")).await?;
    wait_replicas(stack, SMALL, Some("2")).await?;
    open_machine(stack)?;
    stack.start_monitor(&limited, &[]).await?;
    for (name, _, gpu, limits, _) in PODS {
        if let Some(gpu) = gpu {
            start(stack, (SPACE, name), *gpu, limits).await?;
        } else {
            let pod = with_python(stack, SPACE, name, limits)?;
            stack.cluster.create_pod(pod).await?;
            stack.cluster.wait_running(SPACE, name).await?;
        }
    }
    let script = format!("exec python3 $client init alloc,{TAKEN} hold");
    let programs = PODS
        .iter()
        .map(|(name, ..)| script_until_released(stack, SPACE, name, &script));
    let programs = Box::pin(join_all(programs));
    let found = match select(programs, Box::pin(check_figures(stack))).await {
        Either::Left((ended, checks)) => checks
            .await
            .map_err(|error| error.context(format!("{ended:?}"))),
        Either::Right((found, _)) => found,
    };
    found?;
    stack.terminate(Kind::Monitor).await?;
    for (name, ..) in PODS {
        stack.cluster.delete_pod(SPACE, name).await?;
    }
    plain(stack).await?;
    stack.terminate(Kind::DevicePlugin).await?;
    stack.start_device_plugin(&options(PLAIN, false)).await
}

async fn check_figures(stack: &Stack) -> Result<()> {
    for (name, mode, _, _, mib) in PODS {
        let labels = [format!("pod=\"{name}\""), format!("mode=\"{mode}\"")];
        becomes(stack, USED, &labels, mib * MIB).await?;
        becomes(stack, "aliquot_share_clients", &labels, 1.0).await?;
    }
    let gpu = [format!("uuid=\"{}\"", uuid(stack, 1)?)];
    becomes(stack, "aliquot_gpu_shares", &gpu, 1.0).await?;
    let profile = ["profile=\"1g.5gb\"".to_owned()];
    let instance = (TAKEN + CONTEXT) * MIB;
    becomes(
        stack,
        "aliquot_instance_memory_used_bytes",
        &profile,
        instance,
    )
    .await?;
    becomes(stack, USED, &profile, instance).await?;
    for metric in [UNMANAGED, "aliquot_monitor_unknown_processes"] {
        becomes(stack, metric, &[], 0.0).await?;
    }
    eventually(PATIENCE, "the metrics of modes", || async {
        let monitor = http::get(stack.address(Kind::Monitor), "/metrics").await?;
        let agent = http::get(stack.address(Kind::DevicePlugin), "/metrics").await?;
        for name in OF_MODES {
            let start = format!("{name}{{");
            let mut lines = monitor.lines().chain(agent.lines());
            until!(lines.any(|line| line.starts_with(&start)), "no {name}");
        }
        Ok(Some(()))
    })
    .await?;
    // A client of MPS that evades the limiter is found, and charged to its share.
    let found = async {
        let labels = ["pod=\"client\"", "reason=\"no-library\""].map(str::to_owned);
        becomes(stack, UNMANAGED, &labels, 1.0).await?;
        for (name, _, _, _, mib) in PODS {
            let more = if *name == "client" { EVADING } else { 0.0 };
            let labels = [format!("pod=\"{name}\"")];
            becomes(stack, USED, &labels, (mib + more) * MIB).await?;
        }
        Ok(())
    };
    beside(
        stack,
        (SPACE, "client"),
        &[REAL, "init", "alloc,100"],
        found,
    )
    .await
}
