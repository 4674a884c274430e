//! Mode mps at the real kubelet: replicas, caps that programs meet, daemons that die.

use std::sync::Arc;
use std::time::Duration;

use aliquot_cluster::until;
use aliquot_cluster::wait::{PATIENCE, eventually};
use aliquot_e2e::clients::{answers, answers_until_released, nvidia_spec, with_python};
use aliquot_e2e::http;
use aliquot_e2e::stack::{Kind, NODE, NodeOptions, Stack};
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::PLAIN;

const PREFIX: &str = "apiVersion: aliquot.dev/v1alpha1\ndefault: here\nprofiles:\n  here:\n";

fn profile(text: &str) -> String {
    format!("{PREFIX}{text}")
}

/// GPU 0 by MPS for four containers, the others whole.
pub(crate) fn one_mps_gpu() -> String {
    profile("    gpus:\n    - {select: {index: 0}, mode: mps, replicas: 4}\n    rest: exclusive\n")
}

/// The same of GPUs 0 and 1.
pub(crate) fn two_mps_gpus() -> String {
    profile(
        "    gpus:\n    - {select: {index: 0}, mode: mps, replicas: 4}\n    - {select: {index: 1}, mode: mps, replicas: 4}\n    rest: exclusive\n",
    )
}

/// Waits until capacity and allocatable of a resource are `replicas`; `None`: the node has no such
/// key any more.
pub(crate) async fn wait_replicas(
    stack: &Stack,
    resource: &str,
    replicas: Option<&str>,
) -> Result<()> {
    let nodes: Api<Node> = Api::all(stack.cluster.admin()?);
    let what = format!("{replicas:?} of {resource}");
    eventually(PATIENCE, &what, || async {
        let status = nodes.get(NODE).await?.status.unwrap_or_default();
        let of = |all: Option<std::collections::BTreeMap<String, _>>| {
            let all: std::collections::BTreeMap<
                String,
                k8s_openapi::apimachinery::pkg::api::resource::Quantity,
            > = all.unwrap_or_default();
            all.get(resource).map(|quantity| quantity.0.clone())
        };
        let found = (of(status.capacity), of(status.allocatable));
        let expected = replicas.map(str::to_owned);
        until!(found == (expected.clone(), expected), "{found:?}");
        Ok(Some(()))
    })
    .await
}

/// The uuid of a GPU.
pub(crate) fn uuid(stack: &Stack, index: usize) -> Result<String> {
    let shown = stack.machine().show()?;
    let uuid = shown["gpus"][index]["uuid"].as_str();
    Ok(uuid.context("a uuid")?.to_owned())
}

fn compute_modes(stack: &Stack) -> Result<Vec<Value>> {
    let shown = stack.machine().show()?;
    let gpus = shown["gpus"].as_array().context("gpus")?.iter();
    Ok(gpus.map(|gpu| gpu["computeMode"].clone()).collect())
}

/// The driver's own description, so that programs in pods find it.
pub(crate) fn give_driver(stack: &Stack) -> Result<()> {
    let spec = stack.cluster.cdi_dir().join("nvidia.json");
    Ok(std::fs::write(
        spec,
        serde_json::to_vec(&nvidia_spec(stack)?)?,
    )?)
}

/// Starts a pod on a GPU; Python runs in it.
pub(crate) async fn start(
    stack: &Stack,
    (namespace, name): (&str, &str),
    gpu: usize,
    limits: &[(&str, &str)],
) -> Result<()> {
    let mut pod = with_python(stack, namespace, name, limits)?;
    pod["metadata"]["annotations"] = json!({"aliquot.dev/use-gpuuuid": uuid(stack, gpu)?});
    stack.cluster.create_pod(pod).await?;
    stack.cluster.wait_running(namespace, name).await.map(drop)
}

pub(crate) async fn end(stack: &Stack, namespace: &str, names: &[&str]) -> Result<()> {
    for name in names {
        stack.cluster.delete_pod(namespace, name).await?;
    }
    Ok(())
}

/// Back to `vgpu` on all GPUs.
pub(crate) async fn plain(stack: &Stack) -> Result<()> {
    stack.write_profiles(PLAIN)?;
    wait_replicas(stack, "nvidia.com/gpu", Some("80")).await
}

/// MPS-1 and MPS-18: 8 GPUs by 4 are 32 replicas, each GPU is its daemon's alone; afterwards the
/// GPUs are as before, and nothing is left on the node's disk.
pub(crate) async fn replicas(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    stack.machine().set("7", &[("computeMode", "prohibited")])?;
    let before = compute_modes(stack)?;
    stack.write_profiles(&profile("    rest: {mode: mps, replicas: 4}\n"))?;
    wait_replicas(stack, "nvidia.com/gpu", Some("32")).await?;
    ensure!(
        compute_modes(stack)?
            .iter()
            .all(|mode| mode == "exclusiveProcess")
    );
    plain(stack).await?;
    ensure!(compute_modes(stack)? == before);
    let root = stack.agent_state().join("mps");
    let left: Vec<_> = std::fs::read_dir(&root)?.flatten().collect();
    let devices = left.iter().filter(|one| one.file_name() != "wishes");
    ensure!(devices.count() == 0, "{left:?}");
    stack.machine().set("7", &[("computeMode", "default")])?;
    Ok(())
}

/// MPS-2 and MPS-17: an MPS GPU under its own name, the usual name counts the others only; a pod
/// on one of these is no client of MPS and sees its GPU alone.
pub(crate) async fn beside(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    let name = "nvidia.com/gpu.shared";
    stack.write_profiles(&profile(
        "    gpus:\n    - {select: {index: 0}, mode: mps, replicas: 4, rename: nvidia.com/gpu.shared}\n    rest: exclusive\n",
    ))?;
    wait_replicas(stack, name, Some("4")).await?;
    wait_replicas(stack, "nvidia.com/gpu", Some("7")).await?;
    stack.cluster.namespace("mps-beside").await?;
    give_driver(stack)?;
    start(stack, ("mps-beside", "whole"), 1, &[("gpu", "1")]).await?;
    let seen = answers(stack, "mps-beside", "whole", &["init", "count", "info"]).await?;
    ensure!(seen[..2] == ["init: 0", "count: 0 1"], "{seen:?}");
    let env = environment(stack, "mps-beside", "whole").await?;
    ensure!(!env.contains("CUDA_MPS"), "{env}");
    ensure!(
        env.contains(&format!("ALIQUOT_VISIBLE_DEVICES={}", uuid(stack, 1)?)),
        "{env}"
    );
    end(stack, "mps-beside", &["whole"]).await?;
    plain(stack).await?;
    wait_replicas(stack, name, None).await
}

async fn environment(stack: &Stack, namespace: &str, pod: &str) -> Result<String> {
    let output = stack.cluster.exec(namespace, pod, "main", &["env"]).await?;
    output.success()
}

/// MPS-3 and MPS-5: the request is the cap, else the even part; running out of memory kills no
/// process.
pub(crate) async fn caps(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    stack.write_profiles(&one_mps_gpu())?;
    wait_replicas(stack, "nvidia.com/gpu", Some("11")).await?;
    stack.cluster.namespace("mps-caps").await?;
    give_driver(stack)?;
    start(
        stack,
        ("mps-caps", "written"),
        0,
        &[("gpu", "1"), ("gpumem", "15000"), ("gpucores", "30")],
    )
    .await?;
    start(stack, ("mps-caps", "even"), 0, &[("gpu", "1")]).await?;
    let check = async |pod: &str, cap: u64| {
        let free = cap - 416 / 8;
        let (over, all) = (format!("alloc,{}", free + 2), format!("alloc,{free}"));
        let commands = ["init", "info", over.as_str(), all.as_str()];
        let seen = answers(stack, "mps-caps", pod, &commands).await?;
        let expected = [
            "init: 0".to_owned(),
            format!("info: 0 {free} {cap}"),
            format!("{over}: 2"),
            format!("{all}: 0"),
        ];
        ensure!(seen == expected, "{pod}: {seen:?}");
        anyhow::Ok(())
    };
    check("written", 15_000).await?;
    check("even", 10_240).await?;
    let env = environment(stack, "mps-caps", "written").await?;
    for variable in [
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=15000M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30",
        "CUDA_MPS_PIPE_DIRECTORY=/.aliquot-mps",
    ] {
        ensure!(env.contains(variable), "no {variable}: {env}");
    }
    end(stack, "mps-caps", &["written", "even"]).await?;
    plain(stack).await
}

/// MPS-7 and MPS-4: with libvgpu.so two processes of one container stay within its memory
/// together, and the agent counts them.
pub(crate) async fn total(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    let options = |profiles: &str, limited| NodeOptions {
        limited,
        profiles: Some(profiles.to_owned()),
        ..NodeOptions::default()
    };
    stack.terminate(Kind::DevicePlugin).await?;
    let limited = options(&one_mps_gpu(), true);
    stack.start_device_plugin_unready(&limited).await?;
    wait_replicas(stack, "nvidia.com/gpu", Some("11")).await?;
    stack.cluster.namespace("mps-total").await?;
    give_driver(stack)?;
    let limits = [("gpu", "1"), ("gpumem", "5000")];
    start(stack, ("mps-total", "two"), 0, &limits).await?;
    let first = ["init", "alloc,3000", "hold"];
    let second = ["init", "alloc,3000", "alloc,500"];
    let both = async {
        let seen = async {
            counted(stack, "mps_clients", "1").await?;
            let bytes = (3000_u64 + 416 / 8) << 20;
            counted(stack, "mps_used_bytes", &bytes.to_string()).await?;
            let seen = answers(stack, "mps-total", "two", &second).await?;
            // Alone it could have 5000: the other's memory counts.
            ensure!(seen[1..] == ["alloc,3000: 2", "alloc,500: 0"], "{seen:?}");
            anyhow::Ok(())
        };
        let client = answers_until_released(stack, "mps-total", "two", &first);
        tokio::select! {
            output = client => Err(anyhow::anyhow!("the client ended early: {output:?}")),
            seen = seen => seen,
        }
    };
    both.await?;
    end(stack, "mps-total", &["two"]).await?;
    plain(stack).await?;
    stack.terminate(Kind::DevicePlugin).await?;
    stack.start_device_plugin(&options(PLAIN, false)).await
}

/// Waits until a metric of container `main` of pod `two` has this value.
async fn counted(stack: &Stack, name: &str, value: &str) -> Result<()> {
    let what = format!("{name} to be {value}");
    // Less than the client uses.
    eventually(Duration::from_mins(1), &what, || async {
        let metrics = http::get(stack.address(Kind::DevicePlugin), "/metrics").await?;
        let of = |line: &&str| {
            line.contains(&format!("{name}{{")) && line.contains("pod=\"two\",container=\"main\"")
        };
        let found = metrics.lines().find(of).map(str::to_owned);
        let ends = format!(" {value}");
        until!(
            found.as_ref().is_some_and(|line| line.ends_with(&ends)),
            "{found:?}"
        );
        Ok(Some(()))
    })
    .await
}

/// MPS-11: the daemon dies; the pod on it gets an event, the device is out of service until it is
/// back, and programs in the same pod run again.
pub(crate) async fn killed(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    stack.write_profiles(&one_mps_gpu())?;
    wait_replicas(stack, "nvidia.com/gpu", Some("11")).await?;
    stack.cluster.namespace("mps-killed").await?;
    give_driver(stack)?;
    start(
        stack,
        ("mps-killed", "client"),
        0,
        &[("gpu", "1"), ("gpumem", "5000")],
    )
    .await?;
    let run = ["init", "alloc,1000"];
    let seen = answers(stack, "mps-killed", "client", &run).await?;
    ensure!(seen == ["init: 0", "alloc,1000: 0"], "{seen:?}");
    let pipe = stack
        .agent_state()
        .join("mps")
        .join(uuid(stack, 0)?)
        .join("pipe");
    let pid = || std::fs::read_to_string(pipe.join("nvidia-cuda-mps-control.pid"));
    let first = pid()?;
    let daemon = Pid::from_raw(first.trim().parse()?).context("a process id")?;
    kill_process(daemon, Signal::KILL)?;
    let reported = || async {
        let events = stack.cluster.events("mps-killed", "Pod", "client").await?;
        let mut lost = events
            .iter()
            .filter(|e| e.reason.as_deref() == Some("MpsServerLost"));
        Ok(lost.next().is_some().then_some(()))
    };
    eventually(PATIENCE, "an event about the pod", reported).await?;
    eventually(PATIENCE, "another daemon", || async {
        Ok(pid().is_ok_and(|again| again != first).then_some(()))
    })
    .await?;
    eventually(
        PATIENCE,
        "the daemon to serve, and the metric to report it",
        || async {
            let metrics = http::get(stack.address(Kind::DevicePlugin), "/metrics").await?;
            let up = metrics.lines().find(|line| line.contains("mps_daemon_up{"));
            let again = metrics
                .lines()
                .find(|line| line.contains("mps_daemon_restarts{"));
            until!(up.is_some_and(|line| line.ends_with(" 1")), "{up:?}");
            until!(again.is_some_and(|line| line.ends_with(" 1")), "{again:?}");
            Ok(Some(()))
        },
    )
    .await?;
    let seen = answers(stack, "mps-killed", "client", &run).await?;
    ensure!(seen == ["init: 0", "alloc,1000: 0"], "{seen:?}");
    end(stack, "mps-killed", &["client"]).await?;
    plain(stack).await
}
