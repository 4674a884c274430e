//! A node's machine and programs, and the times of calls to them.

use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use aliquot_gpusim::{STATE_VARIABLE, SimulatedMachine};
use anyhow::{Context as _, Error, Result, ensure};
use serde_json::json;
use tokio::process::{Child, Command};

pub(crate) const GPUS: usize = 8;

/// A simulated machine in this directory, and the UUIDs of its GPUs.
pub(crate) fn machine(directory: &Path) -> Result<(SimulatedMachine, Vec<String>)> {
    let yaml = format!("name: bench\ngpus:\n  - count: {GPUS}\n    model: NVIDIA A100-SXM4-80GB\n");
    let machine = SimulatedMachine::create(&directory.join("gpusim.state"), &yaml)?;
    let shown = machine.show()?;
    let gpus = shown["gpus"].as_array().context("gpus")?;
    let gpus = gpus.iter().filter_map(|gpu| gpu["uuid"].as_str());
    let gpus: Vec<String> = gpus.map(str::to_owned).collect();
    ensure!(gpus.len() == GPUS, "{shown}");
    Ok((machine, gpus))
}

/// Writes a kubeconfig for this API server into the directory; its path.
pub(crate) fn kubeconfig(directory: &Path, server: &str) -> Result<String> {
    let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": server}}], "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]});
    let path = directory.join("kubeconfig");
    std::fs::write(&path, config.to_string())?;
    Ok(path.display().to_string())
}

/// Starts one of the product's programs on the machine; its log is in the directory.
pub(crate) fn start(
    program: &str,
    flags: &[(&str, String)],
    directory: &Path,
    machine: &SimulatedMachine,
) -> Result<Child> {
    let binary = std::env::current_exe()?.with_file_name(program);
    let log = std::fs::File::create(directory.join("log"))?;
    Command::new(&binary)
        .args(flags.iter().flat_map(|(flag, value)| [*flag, value]))
        .env(STATE_VARIABLE, machine.state())
        .stdout(Stdio::from(log.try_clone()?))
        .stderr(Stdio::from(log))
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("{}", binary.display()))
}

/// Milliseconds that a call took.
pub(crate) async fn timed<T, E: Into<Error>>(
    call: impl Future<Output = Result<T, E>>,
) -> Result<(T, f64)> {
    let start = Instant::now();
    let answer = call.await.map_err(Into::into)?;
    Ok((answer, start.elapsed().as_secs_f64() * 1000.0))
}

/// The time that this percentage does not exceed.
pub(crate) fn percentile(times: &[f64], percent: usize) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[(sorted.len() - 1) * percent / 100]
}
