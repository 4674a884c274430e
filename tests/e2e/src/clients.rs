//! CUDA programs in pods: the client of tests/limiter, run by the host's Python, with the simulated
//! driver where NVIDIA's toolkit would put the real one.
//!
//! Fed by: scenarios. Must not: tell a program what it was given.

use aliquot_gpusim::place;
use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::pods::{container, pod};
use crate::stack::Stack;

const CLIENTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../limiter/clients");

/// The driver as NVIDIA's toolkit would describe it: its libraries, and where the simulated
/// machine lies.
pub fn nvidia_spec(stack: &Stack) -> Result<Value> {
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

/// A pod with these limits, in which the host's Python runs.
pub fn with_python(
    stack: &Stack,
    namespace: &str,
    name: &str,
    limits: &[(&str, &str)],
) -> Result<Value> {
    let mut pod = pod(namespace, name, &[container("main", limits)]);
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
pub async fn answers(
    stack: &Stack,
    namespace: &str,
    pod: &str,
    commands: &[&str],
) -> Result<Vec<String>> {
    let client = format!("{}/client.py", clients()?);
    let mut words = vec!["/usr/bin/python3", client.as_str()];
    words.extend(commands);
    let output = stack.cluster.exec(namespace, pod, "main", &words).await?;
    Ok(output.success()?.lines().map(str::to_owned).collect())
}

/// The same, with a standard input that stays open for a minute: a client that holds does so.
pub async fn answers_held(
    stack: &Stack,
    namespace: &str,
    pod: &str,
    commands: &[&str],
) -> Result<Vec<String>> {
    let (client, commands) = (clients()?, commands.join(" "));
    let line = format!("sleep 60 | /usr/bin/python3 {client}/client.py {commands}");
    let words = ["sh", "-c", line.as_str()];
    let output = stack.cluster.exec(namespace, pod, "main", &words).await?;
    Ok(output.success()?.lines().map(str::to_owned).collect())
}
