//! The memory limit holds in a pod, for programs that nobody here wrote for it.

use std::sync::Arc;

use aliquot_e2e::pods::{allocation, container, pod};
use aliquot_e2e::stack::{Kind, NodeOptions, Stack};
use aliquot_gpusim::place;
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;
const CLIENTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../limiter/clients");

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
        let pod = with_python(stack, name, memory)?;
        stack.cluster.create_pod(pod).await?;
    }
    let tenant = stack.cluster.wait_running("limits", "tenant").await?;
    stack.cluster.wait_running("limits", "neighbour").await?;
    let gpu = allocation(&tenant)?.grants("main").context("a share")?[0]
        .gpu
        .to_string();

    let beside = client(
        stack,
        "neighbour",
        &["init", "alloc,1000", "ninit", "nmemory"],
    )
    .await?;
    ensure!(beside[3] == "nmemory: [0, 0] 1512 2000", "{beside:?}");
    let nvml = client(stack, "tenant", &["ninit", "ncount", "nmemory"]).await?;
    ensure!(
        nvml[1..] == ["ncount: 0 1", "nmemory: [0, 0] 0 3000"],
        "{nvml:?}"
    );
    // 512 MiB stand for the context.
    let cuda = client(
        stack,
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
    let random = client(stack, "tenant", &["init", "churn,2000", "emptied", "info"]).await?;
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

/// The driver as NVIDIA's toolkit would describe it: its libraries, and where the simulated
/// machine lies.
fn nvidia_spec(stack: &Stack) -> Result<Value> {
    let shown = stack.machine().show()?;
    let cards = shown["gpus"].as_array().context("cards")?.iter();
    let devices: Vec<Value> = cards
        .map(|card| json!({"name": card["uuid"], "containerEdits": {"env": ["CARD=1"]}}))
        .collect();
    let options = ["ro", "nosuid", "nodev", "bind"];
    let mount =
        |from: String, to: &str| json!({"hostPath": from, "containerPath": to, "options": options});
    Ok(json!({
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": devices,
        "containerEdits": {
            "env": ["LD_LIBRARY_PATH=/driver", format!("GPUSIM_STATE={}", stack.machine().state().display())],
            "mounts": [
                mount(place::cuda_library_path()?.display().to_string(), "/driver/libcuda.so.1"),
                mount(place::library_path()?.display().to_string(), "/driver/libnvidia-ml.so.1"),
            ],
        },
    }))
}

/// A pod with this share in MiB, in which the host's Python runs.
fn with_python(stack: &Stack, name: &str, memory: &str) -> Result<Value> {
    let mut pod = pod(
        "limits",
        name,
        &[container("main", &[("gpu", "1"), ("gpumem", memory)])],
    );
    let state = stack
        .machine()
        .state()
        .parent()
        .map(|folder| folder.display().to_string());
    let folders = [
        ("usr", "/usr".to_owned()),
        ("lib", "/lib".to_owned()),
        ("lib64", "/lib64".to_owned()),
        ("clients", clients()?),
        ("machine", state.unwrap_or_default()),
    ];
    pod["spec"]["volumes"] = folders
        .iter()
        .map(|(name, path)| json!({"name": name, "hostPath": {"path": path}}))
        .collect();
    pod["spec"]["containers"][0]["volumeMounts"] = folders
        .iter()
        .map(
            |(name, path)| json!({"name": name, "mountPath": path, "readOnly": *name != "machine"}),
        )
        .collect();
    Ok(pod)
}

/// The folder of the client, as Kubernetes takes it: without `..`.
fn clients() -> Result<String> {
    Ok(std::fs::canonicalize(CLIENTS)?.display().to_string())
}

/// What the client of tests/limiter answers to these commands in a pod.
async fn client(stack: &Stack, pod: &str, commands: &[&str]) -> Result<Vec<String>> {
    let client = format!("{}/client.py", clients()?);
    let mut words = vec!["/usr/bin/python3", client.as_str()];
    words.extend(commands);
    let output = stack.cluster.exec("limits", pod, "main", &words).await?;
    Ok(output.success()?.lines().map(str::to_owned).collect())
}
