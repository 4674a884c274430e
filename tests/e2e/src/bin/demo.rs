//! What `make demo` shows: the example pods on a real one-node cluster, and that their limits hold.
//!
//! `demo up` may be interrupted at any point and run again; `demo down` removes everything.
//! Everything shown was just read from the cluster, and a limit that does not hold is an error.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "printing is what it is for")]

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use aliquot_cluster::Cluster;
use aliquot_cluster::wait::{PATIENCE, eventually};
use aliquot_e2e::clients::{nvidia_spec, offer, open_machine};
use aliquot_e2e::pods::allocation;
use aliquot_e2e::stack::{Kind, NODE, NodeOptions, Stack};
use aliquot_e2e::{http, limits_program};
use aliquot_gpusim::SimulatedMachine;
use aliquot_nvml::{Driver, Nvml};
use anyhow::{Context as _, Result, bail, ensure};
use futures::future::try_join_all;
use serde_json::json;

/// Fixed, so that a later run finds what an interrupted one left.
const STATE: &str = "/tmp/aliquot-demo";
const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
/// The simulated machine.
const MACHINE: &str = "gpus:\n  - count: 2\n    model: NVIDIA A100-SXM4-80GB\n";
/// The image in the examples.
const BUSYBOX: &str = "localhost/busybox:1";
/// The examples that share a GPU.
const PODS: [&str; 2] = ["gpu-pod", "neighbour-pod"];

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
    progress.step("applying the chart's rights");
    let stack = Stack::on(cluster).await?;
    progress.step(
        "starting aliquot-scheduler, aliquot-webhook, aliquot-device-plugin and aliquot-monitor",
    );
    println!("on {gpus}");
    if options.library.is_none() {
        offer_simulated_driver(&stack)?;
    }
    let program = files(&stack)?.join("limits");
    tokio::try_join!(
        limits_program::compile(&program),
        limits_program::import_image(&stack.cluster, limits_program::IMAGE),
        stack.start_scheduler(&[]),
        stack.start_webhook(&[]),
        stack.start_device_plugin(&options),
        stack.start_monitor(&options, &[]),
    )?;

    progress.step("what the node offers");
    let capacity = r"jsonpath={.status.capacity.nvidia\.com/gpu}";
    let replicas = kubectl(&stack, &["get", "node", NODE, "-o", capacity]).await?;
    println!("nvidia.com/gpu: {replicas}");

    progress.step("pods that ask for parts of a GPU (examples/gpu-pod.yaml, neighbour-pod.yaml)");
    println!("their image is {}, with a C library", limits_program::IMAGE);
    let mut gpus = BTreeSet::new();
    for pod in PODS {
        apply(&stack, pod).await?;
    }
    for pod in PODS {
        let running = stack.cluster.wait_running("default", pod).await?;
        let allocation = allocation(&running)?;
        let [grant] = allocation.grants("main").context("main has a share")? else {
            bail!("{pod} has several GPUs");
        };
        let (gpu, memory, cores) = (&grant.gpu, grant.memory, grant.cores);
        println!("{pod}: {gpu}, {memory}, {cores} of its compute");
        gpus.insert(gpu.clone());
        let env = stack.environment("default", pod, "main").await?;
        for (name, end, expected) in [
            (
                "CUDA_DEVICE_MEMORY_LIMIT_0",
                "m",
                f64::from(u32::try_from(memory.0)?),
            ),
            ("CUDA_DEVICE_SM_LIMIT", "", f64::from(cores.0)),
        ] {
            let found = env
                .get(name)
                .with_context(|| format!("{pod} has no {name}"))?;
            // Numbers, so that a change of how they are written does not stop the demo.
            let number = found.strip_suffix(end).unwrap_or(found).parse::<f64>();
            ensure!(
                number.is_ok_and(|number| (number - expected).abs() < 0.5),
                "{pod}: {name}={found}, expected: {expected}{end}"
            );
            println!("{pod}: {name}={found}");
        }
    }
    ensure!(gpus.len() == 1, "both on one GPU was expected: {gpus:?}");

    progress.step("whether their limits hold: examples/limits.c in both at the same time");
    limits_hold(&stack, &program).await?;

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
    apply(&stack, "too-large-pod").await?;
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

/// The demo's own files, which go with the cluster.
fn files(stack: &Stack) -> Result<PathBuf> {
    let folder = stack.cluster.state_dir().join("parts");
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// A directory with kubectl for this cluster and our plugin, so that no installed kubectl is
/// needed.
fn tools(stack: &Stack) -> Result<PathBuf> {
    let folder = files(stack)?.join("bin");
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
                limited: true,
                ..NodeOptions::default()
            };
            (
                options,
                format!("this machine's GPUs: {}", models.join(", ")),
            )
        }
        _ => {
            let options = NodeOptions {
                limited: true,
                ..NodeOptions::default()
            };
            let simulated = "two simulated NVIDIA A100-SXM4-80GB (no GPU found here)";
            (options, simulated.to_owned())
        }
    }
}

/// Makes the simulated machine, and describes its driver as NVIDIA's toolkit does. Its containers
/// have the folder of the machine where those of a real one have device nodes.
fn offer_simulated_driver(stack: &Stack) -> Result<()> {
    let machine = stack.machine();
    let folder = machine.state().parent().context("a folder")?;
    std::fs::create_dir_all(folder)?;
    SimulatedMachine::create(machine.state(), MACHINE)?;
    open_machine(stack)?;
    let mut spec = nvidia_spec(stack)?;
    let mounts = spec["containerEdits"]["mounts"].as_array_mut();
    mounts.context("mounts")?.push(json!({
        "hostPath": folder, "containerPath": folder, "options": ["rw", "nosuid", "nodev", "bind"],
    }));
    offer(stack, &spec)
}

/// Runs `examples/limits.c` in all pods at the same time, and prints what it found.
async fn limits_hold(stack: &Stack, program: &Path) -> Result<()> {
    let program = program.to_string_lossy();
    try_join_all(PODS.map(async |pod| {
        let copy = ["cp", &*program, &format!("{pod}:/tmp/limits")];
        kubectl(stack, &copy).await
    }))
    .await?;
    let found = PODS.map(|pod| stack.cluster.exec("default", pod, "main", &["/tmp/limits"]));
    let found = try_join_all(found).await?;
    for (pod, found) in PODS.iter().zip(&found) {
        for line in found.stdout.lines().chain(found.stderr.lines()) {
            println!("{pod}: {line}");
        }
    }
    for (pod, found) in PODS.iter().zip(&found) {
        ensure!(found.code == Some(0), "a limit of {pod} does not hold");
    }
    Ok(())
}

async fn kubectl(stack: &Stack, args: &[&str]) -> Result<String> {
    stack.cluster.kubectl(args).await?.success()
}

/// Applies an example, with an image in which CUDA programs run, and prints what kubectl printed,
/// warnings too.
async fn apply(stack: &Stack, example: &str) -> Result<()> {
    let text = std::fs::read_to_string(format!("{EXAMPLES}/{example}.yaml"))?;
    ensure!(
        text.contains(BUSYBOX),
        "examples/{example}.yaml has no {BUSYBOX}"
    );
    let text = text.replace(BUSYBOX, limits_program::IMAGE);
    let file = files(stack)?.join("example.yaml");
    std::fs::write(&file, text)?;
    let apply = ["apply", "-f", &*file.to_string_lossy()];
    let output = stack.cluster.kubectl(&apply).await?;
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
