//! What `make demo` shows: an example pod on a real one-node cluster.
//!
//! `demo up` may be interrupted at any point and run again; `demo down` removes everything.
//! Everything shown was just read from the cluster.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "printing is what it is for")]

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use aliquot_cluster::Cluster;
use aliquot_cluster::wait::{PATIENCE, eventually};
use aliquot_e2e::http;
use aliquot_e2e::pods::allocation;
use aliquot_e2e::stack::{Kind, NODE, NodeOptions, Stack};
use aliquot_nvml::{Driver, Nvml};
use anyhow::{Context as _, Result, bail};

/// Fixed, so that a later run finds what an interrupted one left.
const STATE: &str = "/tmp/aliquot-demo";
const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");

#[tokio::main]
async fn main() -> Result<()> {
    match std::env::args().nth(1).as_deref() {
        Some("up") => Box::pin(up()).await,
        Some("down") => {
            Cluster::stop_at(Path::new(STATE)).await?;
            println!("the demo is removed");
            Ok(())
        }
        _ => bail!("usage: demo up|down"),
    }
}

/// Prints each step, and how long the demo has been running.
struct Progress(Instant);

impl Progress {
    fn step(&self, text: &str) {
        println!("\n[{:5.1} s] {text}", self.0.elapsed().as_secs_f32());
    }
}

async fn up() -> Result<()> {
    let progress = Progress(Instant::now());
    let (options, gpus) = node_options();
    progress.step("starting etcd, API server, scheduler, containerd and kubelet");
    let builder = Cluster::with_node().node_name(NODE).extender();
    let cluster = Box::pin(builder.state(Path::new(STATE)).detached().start()).await?;
    progress.step("applying the chart's rights, starting aliquot-scheduler");
    let stack = Stack::on(cluster).await?;
    stack.start_scheduler(&[]).await?;
    progress.step("starting aliquot-webhook");
    stack.start_webhook(&[]).await?;
    progress.step(&format!("starting aliquot-device-plugin on {gpus}"));
    stack.start_device_plugin(&options).await?;
    progress.step("starting aliquot-monitor beside it");
    stack.start_monitor(&options, &[]).await?;

    progress.step("what the node offers");
    let capacity = r"jsonpath={.status.capacity.nvidia\.com/gpu}";
    let replicas = kubectl(&stack, &["get", "node", NODE, "-o", capacity]).await?;
    println!("nvidia.com/gpu: {replicas}");

    progress.step("a pod that asks for a part of a GPU (examples/gpu-pod.yaml)");
    kubectl_shown(
        &stack,
        &["apply", "-f", &format!("{EXAMPLES}/gpu-pod.yaml")],
    )
    .await?;
    let pod = stack.cluster.wait_running("default", "gpu-pod").await?;
    kubectl_shown(&stack, &["get", "pod", "gpu-pod", "-o", "wide"]).await?;

    progress.step("who got what");
    for (container, grants) in allocation(&pod)?.all() {
        for grant in grants {
            let (gpu, memory, cores) = (&grant.gpu, grant.memory, grant.cores);
            println!("container {container}: {gpu}, {memory}, {cores} of its compute");
        }
    }

    progress.step("the container's environment (kubectl exec gpu-pod -- env)");
    for (name, value) in stack.environment("default", "gpu-pod", "main").await? {
        if ["ALIQUOT_", "CUDA_", "NVIDIA_", "GPU_", "ACTIVE_"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
        {
            println!("{name}={value}");
        }
    }

    progress.step("what the monitor measures of it (GET /metrics)");
    let monitor = stack.address(Kind::Monitor);
    let of_pod = ["pod=\"gpu-pod\""];
    let limit = "aliquot_share_memory_limit_bytes";
    eventually(PATIENCE, "the monitor to see the pod", || async {
        let found = http::metric(monitor, limit, &of_pod).await?;
        Ok((found > 0.0).then_some(()))
    })
    .await?;
    for figure in [
        "memory_limit_bytes",
        "memory_used_bytes",
        "core_limit_ratio",
    ] {
        let name = format!("aliquot_share_{figure}");
        let value = http::metric(monitor, &name, &of_pod).await?;
        println!("{name}{{pod=\"gpu-pod\"}} {value}");
    }

    progress.step("a pod that asks for more than any GPU has (examples/too-large-pod.yaml)");
    kubectl_shown(
        &stack,
        &["apply", "-f", &format!("{EXAMPLES}/too-large-pod.yaml")],
    )
    .await?;
    println!("{}", why_pending(&stack, "too-large-pod").await?);

    progress.step("ready; to look around:");
    let scheduler = format!("http://{}", stack.address(Kind::Scheduler));
    println!("  export PATH={}:$PATH", tools(&stack)?.display());
    println!("  kubectl describe pod too-large-pod");
    println!("  kubectl get node {NODE} -o yaml");
    println!("  kubectl aliquot top gpus");
    println!("  kubectl aliquot doctor");
    println!("the cluster page: {scheduler}/page/");
    println!("after a change of an example or of the code: make demo");
    println!("and remove it all with: make demo-down");
    stack.leave_running().await;
    Ok(())
}

/// A directory with kubectl for this cluster and our plugin, so that no installed kubectl is
/// needed.
fn tools(stack: &Stack) -> Result<PathBuf> {
    let folder = stack.cluster.state_dir().join("parts/bin");
    std::fs::create_dir_all(&folder)?;
    let plugin = stack
        .program(Kind::Scheduler)
        .with_file_name("kubectl-aliquot");
    let kubebox = stack.cluster.binaries().join("kubebox");
    let kubeconfig = stack.cluster.kubeconfig();
    // Where the plugin finds parts that have no pods.
    let scheduler = stack.address(Kind::Scheduler);
    let agent = stack.address(Kind::DevicePlugin);
    let monitor = stack.address(Kind::Monitor);
    let parts = format!(
        "ALIQUOT_SERVER=http://{scheduler} ALIQUOT_AGENTS={NODE}=http://{agent} ALIQUOT_MONITORS={NODE}=http://{monitor}"
    );
    let script = |name: &str, program: &Path, verb: &str| {
        let text = format!(
            "#!/bin/sh\nKUBECONFIG={} {parts} exec {} {verb}\"$@\"\n",
            kubeconfig.display(),
            program.display()
        );
        let path = folder.join(name);
        std::fs::write(&path, text)?;
        std::fs::set_permissions(&path, Permissions::from_mode(0o755))
    };
    script("kubectl", &kubebox, "kubectl ")?;
    script("kubectl-aliquot", &plugin, "")?;
    Ok(folder)
}

/// The machine's own GPUs where NVML finds some, else two simulated A100.
fn node_options() -> (NodeOptions, String) {
    let real = aliquot_nvml::Options::default();
    let library = PathBuf::from(&real.library);
    let found = Nvml::open(real).and_then(|nvml| nvml.inventory());
    match found {
        Ok(inventory) if !inventory.gpus.is_empty() => {
            let models: Vec<_> = inventory.gpus.iter().map(|gpu| gpu.model.clone()).collect();
            let options = NodeOptions {
                library: Some(library),
                ..NodeOptions::default()
            };
            (
                options,
                format!("this machine's GPUs: {}", models.join(", ")),
            )
        }
        _ => {
            let simulated = "two simulated NVIDIA A100-SXM4-80GB (no GPU found here)";
            (NodeOptions::default(), simulated.to_owned())
        }
    }
}

async fn kubectl(stack: &Stack, args: &[&str]) -> Result<String> {
    stack.cluster.kubectl(args).await?.success()
}

/// Runs kubectl and prints the command and all it printed, warnings too.
async fn kubectl_shown(stack: &Stack, args: &[&str]) -> Result<()> {
    println!("$ kubectl {}", args.join(" ").replace(EXAMPLES, "examples"));
    let output = stack.cluster.kubectl(args).await?;
    print!("{}{}", output.stderr, output.stdout);
    output.success().map(drop)
}

/// The pod's phase and the scheduler's reason, as soon as there is one.
async fn why_pending(stack: &Stack, pod: &str) -> Result<String> {
    eventually(PATIENCE, "the reason why the pod is Pending", || async {
        let phase = kubectl(
            stack,
            &["get", "pod", pod, "-o", "jsonpath={.status.phase}"],
        )
        .await?;
        let events = stack.event_texts("default", pod).await?;
        let reason = events
            .into_iter()
            .find(|event| event.starts_with("Refused"));
        let reason = reason.context("no such event yet")?;
        Ok(Some(format!("{pod} is {phase}. {reason}")))
    })
    .await
}
