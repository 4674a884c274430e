//! The memory limit holds in a pod, for programs that nobody here wrote for it.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;

use aliquot_cluster::wait::eventually;
use aliquot_e2e::clients::{answers, nvidia_spec, with_python};
use aliquot_e2e::pods::{allocation, container, pod};
use aliquot_e2e::stack::{Kind, NodeOptions, Stack};
use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use crate::running::PATIENCE;

const MIB: u64 = 1 << 20;

/// Issue D4, 1: a share of 3000 MiB is what NVML shows, what can be allocated, and the most that
/// is ever held; the neighbour on the card notices nothing.
pub(crate) async fn held(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    limited(stack).await?;
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

    unlimited(stack, &["tenant", "neighbour"]).await
}

/// Issue D4, 3: a plain user and root, both with a root file system that is read-only, are limited
/// alike (root of a user namespace in `tests/limiter`: this runtime has none), and each seat's
/// counters lie on a file system of their own until the seat is collected, whatever becomes of the
/// agent.
pub(crate) async fn users(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    limited(stack).await?;
    let plain = json!({"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 2000});
    let locked = json!({"readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false});
    for (name, context) in [("user", plain), ("root", json!({}))] {
        let mut pod = with_python(stack, "limits", name, &[("gpu", "1"), ("gpumem", "3000")])?;
        pod["spec"]["securityContext"] = context;
        pod["spec"]["containers"][0]["securityContext"] = locked.clone();
        stack.cluster.create_pod(pod).await?;
    }
    for name in ["user", "root"] {
        stack.cluster.wait_running("limits", name).await?;
        let commands = ["init", "alloc,2490", "alloc,2488", "info"];
        let said = answers(stack, "limits", name, &commands).await?;
        let expected = [
            "init: 0",
            "alloc,2490: 2",
            "alloc,2488: 0",
            "info: 0 0 3000",
        ];
        ensure!(said == expected, "{name}: {said:?}");
    }
    let seats = stack.agent_state().join("seats");
    let rooms = || async {
        let mounts = stack.mounts(Kind::DevicePlugin).await?;
        let seats = format!("{}/", seats.display());
        let own = |line: &&str| line.contains(&seats) && line.contains(" - tmpfs ");
        anyhow::Ok(mounts.lines().filter(own).count())
    };
    ensure!(rooms().await? == 2, "{}", rooms().await?);
    stack.terminate(Kind::DevicePlugin).await?;
    let limited = NodeOptions {
        limited: true,
        ..NodeOptions::default()
    };
    stack.start_device_plugin(&limited).await?;
    ensure!(rooms().await? == 2, "mounted twice, or taken away");
    let said = answers(stack, "limits", "user", &["init", "info"]).await?;
    ensure!(said[1] == "info: 0 2488 3000", "{said:?}");
    let delete = ["delete", "pod", "-n", "limits", "user", "root", "--wait"];
    stack.cluster.kubectl(&delete).await?.success()?;
    // The kubelet forgets what pods had when the next one comes.
    let next = pod("limits", "next", &[container("main", &[("gpu", "1")])]);
    stack.cluster.create_pod(next).await?;
    stack.cluster.wait_running("limits", "next").await?;
    eventually(PATIENCE, "the ended seats' file systems to go", || async {
        Ok((rooms().await? == 1).then_some(()))
    })
    .await?;
    unlimited(stack, &["next"]).await
}

/// Starts the agent anew with libvgpu.so, and a driver to stand before.
async fn limited(stack: &Stack) -> Result<()> {
    let known = stack.cluster.kubectl(&["get", "namespace", "limits"]);
    if known.await?.success().is_err() {
        stack.cluster.namespace("limits").await?;
    }
    let spec = stack.cluster.cdi_dir().join("nvidia.json");
    std::fs::write(&spec, serde_json::to_vec(&nvidia_spec(stack)?)?)?;
    let limited = NodeOptions {
        limited: true,
        ..NodeOptions::default()
    };
    stack.terminate(Kind::DevicePlugin).await?;
    stack.start_device_plugin(&limited).await?;
    // A device node is every user's; the simulated machine is a folder of files.
    let state = stack.machine().state().to_owned();
    let folder = state.parent().context("a folder")?;
    let open = |path: &Path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode));
    open(folder, 0o777)?;
    for file in std::fs::read_dir(folder)? {
        let file = file?;
        if file.file_type()?.is_file() {
            open(&file.path(), 0o666)?;
        }
    }
    Ok(())
}

/// Ends these pods and starts the agent anew as the other scenarios need it.
async fn unlimited(stack: &Stack, pods: &[&str]) -> Result<()> {
    if !pods.is_empty() {
        let mut delete = vec!["delete", "pod", "-n", "limits", "--wait"];
        delete.extend(pods);
        stack.cluster.kubectl(&delete).await?.success()?;
    }
    std::fs::remove_file(stack.cluster.cdi_dir().join("nvidia.json"))?;
    stack.terminate(Kind::DevicePlugin).await?;
    stack.start_device_plugin(&NodeOptions::default()).await
}
