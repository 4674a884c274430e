//! The memory limit holds in a pod, for programs that nobody here wrote for it.

use std::sync::Arc;

use aliquot_e2e::clients::{answers, nvidia_spec, with_python};
use aliquot_e2e::pods::allocation;
use aliquot_e2e::stack::{Kind, NodeOptions, Stack};
use anyhow::{Context as _, Result, ensure};

const MIB: u64 = 1 << 20;

/// Issue D4, 1: a share of 3000 MiB is what NVML shows, what can be allocated, and the most that
/// is ever held; the neighbour on the card notices nothing.
pub(crate) async fn held(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    stack.cluster.namespace("limits").await?;
    let spec = stack.cluster.cdi_dir().join("nvidia.json");
    std::fs::write(&spec, serde_json::to_vec(&nvidia_spec(stack)?)?)?;
    let limited = NodeOptions {
        limited: true,
        ..NodeOptions::default()
    };
    stack.terminate(Kind::DevicePlugin).await?;
    stack.start_device_plugin(&limited).await?;

    for (name, memory) in [("tenant", "3000"), ("neighbour", "2000")] {
        let pod = with_python(stack, "limits", name, &[("gpu", "1"), ("gpumem", memory)])?;
        stack.cluster.create_pod(pod).await?;
    }
    let tenant = stack.cluster.wait_running("limits", "tenant").await?;
    stack.cluster.wait_running("limits", "neighbour").await?;
    let gpu = allocation(&tenant)?.grants("main").context("a share")?[0]
        .gpu
        .to_string();

    let beside = answers(
        stack,
        "limits",
        "neighbour",
        &["init", "alloc,1000", "ninit", "nmemory"],
    )
    .await?;
    ensure!(beside[3] == "nmemory: [0, 0] 1512 2000", "{beside:?}");
    let nvml = answers(stack, "limits", "tenant", &["ninit", "ncount", "nmemory"]).await?;
    ensure!(
        nvml[1..] == ["ncount: 0 1", "nmemory: [0, 0] 0 3000"],
        "{nvml:?}"
    );
    // 512 MiB stand for the context.
    let cuda = answers(
        stack,
        "limits",
        "tenant",
        &["init", "info", "alloc,2490", "alloc,2488", "alloc,2"],
    )
    .await?;
    let expected = [
        "init: 0",
        "info: 0 2488 3000",
        "alloc,2490: 2",
        "alloc,2488: 0",
        "alloc,2: 2",
    ];
    ensure!(cuda == expected, "{cuda:?}");
    let random = answers(
        stack,
        "limits",
        "tenant",
        &["init", "churn,2000", "emptied", "info"],
    )
    .await?;
    ensure!(random[3] == "info: 0 2488 3000", "{random:?}");
    let holders = stack.machine().holders(&gpu)?;
    ensure!(
        holders.iter().all(|one| one.peak <= 3000 * MIB),
        "{holders:?}"
    );

    let delete = [
        "delete",
        "pod",
        "-n",
        "limits",
        "tenant",
        "neighbour",
        "--wait",
    ];
    stack.cluster.kubectl(&delete).await?.success()?;
    std::fs::remove_file(spec)?;
    stack.terminate(Kind::DevicePlugin).await?;
    stack.start_device_plugin(&NodeOptions::default()).await
}
