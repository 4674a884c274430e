//! The node of these scenarios, and what a container has of its GPUs, read in the container itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use aliquot_e2e::clients::offer_driver;
use aliquot_e2e::pods::parse_environment;
use aliquot_e2e::stack::{Kind, NodeOptions, Stack};
use aliquot_gpusim::SimulatedMachine;
use anyhow::{Context as _, Result, ensure};

pub(crate) use aliquot_cluster::wait::PATIENCE;

/// Two A100, a T4, and an A100 with dynamic MIG.
const MACHINE: &str = "
name: hami
gpus:
- {count: 2, model: NVIDIA A100-SXM4-80GB}
- {count: 1, model: Tesla T4}
- {count: 1, model: NVIDIA A100-SXM4-40GB}
";
const PROFILES: &str = "
apiVersion: aliquot.dev/v1alpha1
default: here
profiles:
  here:
    gpus: [{select: {index: 3}, mode: mig, dynamic: true, allow: [2g.10gb, 3g.20gb]}]
    rest: vgpu
";
/// Of the three GPUs in shares.
const REPLICAS: &str = "30";
/// MiB of an A100 of these, without what the driver reserves.
pub(crate) const A100: u64 = 81_920 - 634;
/// The same of the T4.
pub(crate) const T4: u64 = 15_360 - 450;

pub(crate) async fn start(stack: Arc<Stack>) -> Result<()> {
    stack.start_scheduler(&[]).await?;
    stack.start_webhook(&[]).await?;
    let state = stack.machine().state().to_owned();
    std::fs::create_dir_all(state.parent().context("a directory")?)?;
    SimulatedMachine::create(&state, MACHINE)?;
    offer_driver(&stack)?;
    let agent = NodeOptions {
        profiles: Some(PROFILES.to_owned()),
        ..NodeOptions::limited()
    };
    stack.start_device_plugin_unready(&agent).await?;
    stack.wait_ready(Kind::DevicePlugin).await?;
    stack.wait_capacity(REPLICAS).await
}

/// Scheduler and webhook with other flags.
pub(crate) async fn with_parts(stack: &Stack, flags: &[&str]) -> Result<()> {
    stack.terminate(Kind::Webhook).await?;
    stack.terminate(Kind::Scheduler).await?;
    stack.start_scheduler(flags).await?;
    stack.start_webhook(flags).await
}

/// What a container has of one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GpuShare {
    pub(crate) uuid: String,
    /// MiB.
    pub(crate) memory: u64,
    /// Percent.
    pub(crate) cores: u32,
}

/// Waits until the pod runs, and reads what its container `main` has.
pub(crate) async fn seen(stack: &Stack, namespace: &str, name: &str) -> Result<Vec<GpuShare>> {
    stack.cluster.wait_running(namespace, name).await?;
    let script = "env; echo PAGE; od -v -An -tx1 /.aliquot/limits";
    let script = ["sh", "-c", script];
    let output = stack.cluster.exec(namespace, name, "main", &script).await?;
    let output = output.success()?;
    let (environment, page) = output.split_once("PAGE\n").context("a page")?;
    let bytes = page.split_whitespace();
    let page: Result<Vec<u8>, _> = bytes.map(|byte| u8::from_str_radix(byte, 16)).collect();
    read(&parse_environment(environment), &page?).with_context(|| format!("{name} sees {output}"))
}

/// The limits page applies, and the environment must match it.
fn read(environment: &BTreeMap<String, String>, page: &[u8]) -> Result<Vec<GpuShare>> {
    let word = |at: usize| -> Result<u32> {
        let bytes = page.get(at..at + 4).context("a short page")?;
        Ok(u32::from_le_bytes(bytes.try_into()?))
    };
    let variable = |name: &str| environment.get(name).cloned().unwrap_or_default();
    let visible = variable("ALIQUOT_VISIBLE_DEVICES");
    let mut gpus = Vec::new();
    for (index, uuid) in visible.split(',').enumerate() {
        let at = 64 + 120 * index;
        let named = page.get(at..at + 40).context("a short page")?;
        ensure!(named.starts_with(uuid.as_bytes()), "GPU {index}");
        let bytes: [u8; 8] = page[at + 40..at + 48].try_into()?;
        let gpu = GpuShare {
            uuid: uuid.to_owned(),
            memory: u64::from_le_bytes(bytes) >> 20,
            cores: word(at + 48)?,
        };
        let memory = variable(&format!("CUDA_DEVICE_MEMORY_LIMIT_{index}"));
        ensure!(memory == format!("{}m", gpu.memory), "{gpu:?}");
        let cores = variable("CUDA_DEVICE_SM_LIMIT");
        ensure!(cores == gpu.cores.to_string(), "{gpu:?}");
        gpus.push(gpu);
    }
    ensure!(word(12)? == u32::try_from(gpus.len())?, "gpus");
    let (priority, policy) = (word(32)?, word(36)?);
    ensure!(
        variable("CUDA_TASK_PRIORITY") == priority.to_string(),
        "priority"
    );
    let policies = ["default", "force", "disable"];
    let named = policies.get(usize::try_from(policy)?);
    let output = variable("GPU_CORE_UTILIZATION_POLICY");
    ensure!(named == Some(&output.as_str()), "policy {policy}");
    Ok(gpus)
}

/// Ends all pods of a namespace.
pub(crate) async fn over(stack: &Stack, namespace: &str) -> Result<()> {
    let delete = ["delete", "pod", "-n", namespace, "--all", "--wait"];
    stack.cluster.kubectl(&delete).await?.success().map(drop)
}
