//! An upgrade of the driver, as GPU Operator does it on a drained node: its driver manager pauses the
//! node, the agent's pod ends, the old driver is unloaded and a newer one loaded.
//! `hami_12_pod_survives_chart_upgrade_and_uninstall` shows that the node's labels end the pod.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_cluster::until;
use aliquot_cluster::wait::{PATIENCE, eventually};
use aliquot_e2e::clients::{answers, nvidia_spec, offer, with_python};
use aliquot_e2e::stack::{Kind, NODE, NodeOptions, Stack};
use aliquot_gpusim::place;
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::limits::{limited, unlimited};
use crate::losses::inventory;

const SPACE: &str = "limits";
const OLD: &str = "580.82.07";
const NEW: &str = "590.44.01";
/// For agent and monitor to end; the driver manager waits five minutes.
const SOON: Duration = Duration::from_secs(20);

pub(crate) async fn after_drain(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    limited(stack, &driver(stack, OLD)?).await?;
    stack.start_monitor(&NodeOptions::default(), &[]).await?;
    limit_holds(stack, "before").await?;

    let error = stack.machine().unload();
    let error = error.err().context("it is open")?.to_string();
    for holder in ["aliquot-device", "aliquot-monitor"] {
        ensure!(error.contains(holder), "{error}");
    }
    let drain = ["drain", NODE, "--ignore-daemonsets", "--force"];
    stack.cluster.kubectl(&drain).await?.success()?;
    let begun = Instant::now();
    stack.terminate(Kind::Monitor).await?;
    stack.terminate(Kind::DevicePlugin).await?;
    ensure!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    let outcome = upgraded(stack).await;
    let uncordon = ["uncordon", NODE];
    stack.cluster.kubectl(&uncordon).await?.success()?;
    outcome?;

    limit_holds(stack, "after").await?;
    let (files, new) = (mounted_driver_files(stack)?, folder(stack, NEW));
    let is_new = |file: &PathBuf| file.starts_with(&new);
    ensure!(!files.is_empty() && files.iter().all(is_new), "{files:?}");
    stack.terminate(Kind::Monitor).await?;
    // As the next scenarios expect it.
    stack.machine().set_driver(OLD)?;
    unlimited(stack, &["after"]).await?;
    Ok(std::fs::remove_dir_all(new)?)
}

/// The driver manager's part, and the agent's start after it.
async fn upgraded(stack: &Stack) -> Result<()> {
    stack.wait_capacity("0").await?;
    stack.machine().unload()?;
    std::fs::remove_dir_all(folder(stack, OLD))?;
    offer(stack, &driver(stack, NEW)?)?;
    stack.machine().load(NEW)?;
    let options = NodeOptions {
        limited: true,
        ..NodeOptions::default()
    };
    stack.start_device_plugin(&options).await?;
    stack.start_monitor(&NodeOptions::default(), &[]).await?;
    eventually(PATIENCE, "the newer driver to be published", || async {
        let published = inventory(&stack.cluster).await?.driver;
        until!(published == NEW, "{published}");
        Ok(Some(()))
    })
    .await
}

/// Starts a pod whose limit is in force.
async fn limit_holds(stack: &Stack, name: &str) -> Result<()> {
    let limits = [("gpu", "1"), ("gpumem", "3000")];
    let pod = with_python(stack, SPACE, name, &limits)?;
    stack.cluster.create_pod(pod).await?;
    stack.cluster.wait_running(SPACE, name).await?;
    let commands = ["init", "alloc,2490", "alloc,2488"];
    let output = answers(stack, SPACE, name, &commands).await?;
    let expected = ["init: 0", "alloc,2490: 2", "alloc,2488: 0"];
    ensure!(output == expected, "{output:?}");
    Ok(())
}

fn folder(stack: &Stack, version: &str) -> PathBuf {
    let name = format!("driver-{version}");
    stack.machine().state().with_file_name(name)
}

/// Installs the files of a driver, named after its version, and describes them as NVIDIA's toolkit does.
fn driver(stack: &Stack, version: &str) -> Result<Value> {
    let folder = folder(stack, version);
    std::fs::create_dir_all(&folder)?;
    let mut spec = nvidia_spec(stack)?;
    let files = [
        (place::cuda_library_path()?, "libcuda.so"),
        (place::library_path()?, "libnvidia-ml.so"),
    ];
    for (at, (built, name)) in files.iter().enumerate() {
        let file = folder.join(format!("{name}.{version}"));
        std::fs::copy(built, &file)?;
        spec["containerEdits"]["mounts"][at]["hostPath"] = json!(file);
    }
    Ok(spec)
}

/// The driver's files on the host that the agent's own specs mount.
fn mounted_driver_files(stack: &Stack) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let driver = folder(stack, "").to_string_lossy().into_owned();
    for entry in std::fs::read_dir(stack.cluster.cdi_dir())? {
        let path = entry?.path();
        if path.ends_with("nvidia.json") {
            continue;
        }
        let spec: Value = serde_json::from_slice(&std::fs::read(&path)?)?;
        let devices = spec["devices"].as_array().into_iter().flatten();
        let edits = devices.map(|device| &device["containerEdits"]);
        let edits = edits.chain([&spec["containerEdits"]]);
        let mounts = edits.flat_map(|edits| edits["mounts"].as_array().into_iter().flatten());
        let paths = mounts.filter_map(|mount| mount["hostPath"].as_str());
        let own = paths.filter(|path| path.starts_with(&driver));
        files.extend(own.map(PathBuf::from));
    }
    Ok(files)
}
