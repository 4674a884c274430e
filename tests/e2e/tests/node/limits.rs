//! The memory limit holds in a pod.
//!
//! Every context takes 512 MiB of a share here.

use std::sync::Arc;

use aliquot_cluster::USERS;
use aliquot_cluster::until;
use aliquot_cluster::wait::eventually;
use aliquot_e2e::clients::{check, nvidia_spec, offer, open_machine, with_python, withdraw};
use aliquot_e2e::pods::allocation;
use aliquot_e2e::stack::{Kind, NodeOptions, Stack};
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::running::PATIENCE;

const MIB: u64 = 1 << 20;

/// A share of 3000 MiB is what NVML shows, what can be allocated, and the most that is ever in use;
/// the neighbour on the GPU is not affected.
pub(crate) async fn memory_limit(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    limited(stack).await?;
    for (name, memory) in [("tenant", "3000"), ("neighbour", "2000")] {
        let limits = [("gpu", "1"), ("gpumem", memory), ("gpucores", "30")];
        let pod = with_python(stack, "limits", name, &limits)?;
        stack.cluster.create_pod(pod).await?;
    }
    let tenant = stack.cluster.wait_running("limits", "tenant").await?;
    stack.cluster.wait_running("limits", "neighbour").await?;
    let gpu = allocation(&tenant)?.grants("main").context("a share")?[0]
        .gpu
        .to_string();

    let beside = "init: 0; alloc,1000: 0; ninit: 0; nmemory: [0, 0] 1512 2000";
    check(stack, "limits", "neighbour", beside).await?;
    let nvml = "ninit: 0; ncount: 0 1; nmemory: [0, 0] 0 3000";
    check(stack, "limits", "tenant", nvml).await?;
    let cuda = "init: 0; info: 0 2488 3000; alloc,2490: 2; alloc,2488: 0; alloc,2: 2";
    check(stack, "limits", "tenant", cuda).await?;
    let holders = stack.machine().process_usage(&gpu)?;
    ensure!(
        holders.iter().all(|one| one.peak <= 3000 * MIB),
        "{holders:?}"
    );
    let beside = "init: 0; info: 0 1488 2000; alloc,1488: 0; alloc,2: 2";
    check(stack, "limits", "neighbour", beside).await?;

    unlimited(stack, &["tenant", "neighbour"]).await
}

/// A plain user, root, and root of a user namespace of its own, all with a read-only root file
/// system, are limited alike, and each container's counters lie on a file system of their own until
/// its directory is collected, whatever happens to the agent.
pub(crate) async fn users(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    limited(stack).await?;
    runtime_of_users(stack).await?;
    let plain = json!({"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 2000});
    let locked = json!({"readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false});
    for (name, context) in [("user", plain), ("root", json!({})), ("users", json!({}))] {
        let mut pod = with_python(stack, "limits", name, &[("gpu", "1"), ("gpumem", "3000")])?;
        pod["spec"]["securityContext"] = context;
        if name == "users" {
            in_users(&mut pod);
        }
        pod["spec"]["containers"][0]["securityContext"] = locked.clone();
        stack.cluster.create_pod(pod).await?;
    }
    for name in ["user", "root", "users"] {
        stack.cluster.wait_running("limits", name).await?;
        let script = "init: 0; alloc,2490: 2; alloc,2488: 0; info: 0 0 3000";
        check(stack, "limits", name, script).await?;
    }
    let map = ["cat", "/proc/self/uid_map"];
    let map = stack.cluster.exec("limits", "users", "main", &map).await?;
    let map = map.success()?;
    let outside = map.split_whitespace().nth(1).context("a map")?;
    ensure!(outside != "0", "its root is the host's: {map}");
    let directories = stack.agent_state().join("containers");
    let rooms = || async {
        let mounts = stack.mounts(Kind::DevicePlugin).await?;
        let directories = format!("{}/", directories.display());
        let own = |line: &&str| line.contains(&directories) && line.contains(" - tmpfs ");
        anyhow::Ok(mounts.lines().filter(own).count())
    };
    // Those of an earlier scenario are collected soon after its pods.
    eventually(
        PATIENCE,
        "a file system for each container directory",
        || async {
            let found = rooms().await?;
            until!(found == 3, "{found}");
            Ok(Some(()))
        },
    )
    .await?;
    stack.restart_device_plugin(&NodeOptions::limited()).await?;
    ensure!(rooms().await? == 3, "mounted twice, or taken away");
    check(stack, "limits", "user", "init: 0; info: 0 2488 3000").await?;
    let delete = [
        "delete", "pod", "-n", "limits", "user", "root", "users", "--wait",
    ];
    stack.cluster.kubectl(&delete).await?.success()?;
    // The kubelet's checkpoint lists them until the next pod is admitted.
    eventually(PATIENCE, "the file systems of ended pods to go", || async {
        Ok((rooms().await? == 0).then_some(()))
    })
    .await?;
    unlimited(stack, &[]).await
}

/// The hook cannot run from a state directory that is mounted noexec, as `/var` is on some systems:
/// the node says so, and containers are limited once the hook has another directory.
pub(crate) async fn noexec(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    limited(stack).await?;
    stack.terminate(Kind::DevicePlugin).await?;
    let state = stack.agent_state().display().to_string();
    let options = "mode=755,nosuid,nodev,noexec";
    let arguments = ["-t", "tmpfs", "-o", options, "aliquot-cluster", &state];
    let mounted = stack.cluster.run_on_node("mount", &arguments);
    mounted.await?.success()?;
    let outcome = with_exec_dir(stack).await;
    // After a failure there may be no pod, and no agent.
    let _gone = stack.cluster.delete_pod("limits", "noexec").await;
    let _ended = stack.terminate(Kind::DevicePlugin).await;
    let arguments = ["--lazy", &state];
    let unmounted = stack.cluster.run_on_node("umount", &arguments);
    unmounted.await?.success()?;
    withdraw(stack)?;
    let ended = stack.start_device_plugin(&NodeOptions::default()).await;
    outcome?;
    ended
}

async fn with_exec_dir(stack: &Stack) -> Result<()> {
    let mut options = NodeOptions::limited();
    stack.start_device_plugin(&options).await?;
    let condition = "AliquotRuntimeIncomplete";
    let is_named = |text: &str| text.contains("the host cannot run");
    let named = stack.wait_condition(condition, is_named).await?;
    ensure!(
        named.starts_with("True HookNotExecutable: ") && named.contains("devicePlugin.execDir"),
        "{named}"
    );
    options.exec_dir = Some(stack.machine().state().with_file_name("exec"));
    stack.restart_device_plugin(&options).await?;
    stack
        .wait_condition(condition, |text| !is_named(text))
        .await?;
    let share = [("gpu", "1"), ("gpumem", "3000")];
    let pod = with_python(stack, "limits", "noexec", &share)?;
    stack.cluster.create_pod(pod).await?;
    stack.cluster.wait_running("limits", "noexec").await?;
    let script = "init: 0; alloc,2490: 2; alloc,2488: 0";
    check(stack, "limits", "noexec", script).await
}

/// The node's second runtime, under its name.
pub(crate) async fn runtime_of_users(stack: &Stack) -> Result<()> {
    let classes: Api<RuntimeClass> = Api::all(stack.cluster.admin()?);
    if classes.get_opt(USERS).await?.is_none() {
        let class = json!({"metadata": {"name": USERS}, "handler": USERS});
        let class = serde_json::from_value(class)?;
        classes.create(&PostParams::default(), &class).await?;
    }
    Ok(())
}

/// Gives a pod a user namespace of its own.
pub(crate) fn in_users(pod: &mut Value) {
    pod["spec"]["runtimeClassName"] = json!(USERS);
    pod["spec"]["hostUsers"] = json!(false);
}

/// Restarts the agent with libvgpu.so, and creates the namespace.
pub(crate) async fn limited(stack: &Stack) -> Result<()> {
    let known = stack.cluster.kubectl(&["get", "namespace", "limits"]);
    if known.await?.success().is_err() {
        stack.cluster.namespace("limits").await?;
    }
    limited_with(stack, &nvidia_spec(stack)?).await
}

/// Restarts the agent with libvgpu.so and this driver.
pub(crate) async fn limited_with(stack: &Stack, driver: &Value) -> Result<()> {
    offer(stack, driver)?;
    stack.restart_device_plugin(&NodeOptions::limited()).await?;
    open_machine(stack)
}

/// Ends these pods and restarts the agent as the other scenarios need it.
pub(crate) async fn unlimited(stack: &Stack, pods: &[&str]) -> Result<()> {
    if !pods.is_empty() {
        let mut delete = vec!["delete", "pod", "-n", "limits", "--wait"];
        delete.extend(pods);
        stack.cluster.kubectl(&delete).await?.success()?;
    }
    withdraw(stack)?;
    stack.restart_device_plugin(&NodeOptions::default()).await
}
