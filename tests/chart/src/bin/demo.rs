//! What `make demo` shows: the chart on a real one-node cluster, installed as the guide says, the example
//! pods with their limits, and what `kubectl aliquot` says of it.
//!
//! `demo up` may be interrupted at any point and run again; `demo down` removes everything.
//! Everything shown was just read from the cluster, and a limit that does not hold is an error.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "printing is what it is for")]

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use aliquot_chart::simulated_node::{
    archive, built, image_values, kube_scheduler, load, open_machine, values_for,
};
use aliquot_chart::{NAMESPACE, chart, helm, top};
use aliquot_cluster::wait::{PATIENCE, eventually};
use aliquot_cluster::{Cluster, NODE};
use aliquot_e2e::limits_program;
use aliquot_e2e::pods::allocation;
use aliquot_nvml::{Driver, Nvml};
use anyhow::{Context as _, Result, bail, ensure};
use futures::future::try_join_all;
use serde_json::{Value, json};
use tokio::process::Command;

/// Fixed, so that a later run finds what an interrupted one left.
const STATE: &str = "/tmp/aliquot-demo";
/// The image in the examples.
const BUSYBOX: &str = "localhost/busybox:1";
/// The examples that share a GPU.
const PODS: [&str; 2] = ["gpu-pod", "neighbour-pod"];
/// Points of a percent by which a busy pod may get more than its share.
const TOLERANCE: f64 = 2.0;

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

/// The running cluster with a reader's tools.
struct Demo {
    cluster: Cluster,
    /// What goes with the cluster.
    files: PathBuf,
}

async fn up() -> Result<()> {
    let progress = Progress(Instant::now());
    progress.step("starting etcd, API server, controllers, containerd and kubelet");
    let demo = Box::pin(Demo::start()).await?;
    let (values, gpus) = demo.values()?;
    println!("node {NODE} with {gpus}");

    progress.step("installing the chart, with the image of the programs built here");
    demo.install(&values).await?;
    demo.kubectl(&["label", "node", NODE, "gpu=on"]).await?;
    demo.doctor(&["--wait"]).await?;

    progress
        .step("two pods that ask for parts of a GPU (examples/gpu-pod.yaml, neighbour-pod.yaml)");
    demo.pods_run().await?;

    progress.step("whether their limits hold: examples/limits.c in both at the same time");
    demo.limits_hold().await?;
    println!("{}", demo.aliquot(&["top", "gpus"]).await?.trim_end());

    progress.step("a pod that asks for more than any GPU has (examples/too-large-pod.yaml)");
    demo.apply("too-large-pod").await?;
    println!("{}", demo.why_pending("too-large-pod").await?);
    demo.doctor(&[]).await?;

    progress.step("ready; to look around:");
    println!("  export PATH={}:$PATH", demo.files.join("bin").display());
    println!("  kubectl describe pod too-large-pod");
    println!("  kubectl aliquot explain too-large-pod");
    println!("  kubectl aliquot top pods");
    println!("  kubectl aliquot dashboard      # the cluster page in a browser");
    println!("a picture of that page: docs/screens/cluster-page-installed.png");
    println!("after a change of an example or of the code: make demo");
    println!("and remove it all with: make demo-down");
    Ok(())
}

impl Demo {
    /// The cluster, and the images on its node.
    async fn start() -> Result<Self> {
        let made = tempfile::tempdir()?;
        let image = made.path().join("aliquot.tar");
        let cluster = Cluster::with_node()
            // Aliquot's scheduler runs in its pods; the cluster's own serves other names.
            .chart_value("schedulerName", json!("unused"))
            // Without kube-proxy, the API server calls webhooks at their pods.
            .apiserver_arg("--enable-aggregator-routing=true")
            .serve_pods()
            .state(Path::new(STATE))
            .detached();
        let (cluster, ()) = tokio::try_join!(Box::pin(cluster.start()), archive(&image))?;
        let files = cluster.state_dir().join("parts");
        std::fs::create_dir_all(&files)?;
        let demo = Self { cluster, files };
        demo.write_tools()?;
        let limits = demo.limits_program();
        tokio::try_join!(
            load(&demo.cluster, &image),
            kube_scheduler(&demo.cluster),
            limits_program::import_image(&demo.cluster, limits_program::IMAGE),
            limits_program::compile(&limits),
        )?;
        Ok(demo)
    }

    fn limits_program(&self) -> PathBuf {
        self.files.join("limits")
    }

    /// kubectl and our plugin with this cluster's kubeconfig, so that no installed kubectl is needed.
    fn write_tools(&self) -> Result<()> {
        let folder = self.files.join("bin");
        std::fs::create_dir_all(&folder)?;
        let kubeconfig = self.cluster.kubeconfig();
        let kubebox = self.cluster.binaries().join("kubebox");
        for (name, program, verb) in [
            ("kubectl", kubebox, "kubectl "),
            ("kubectl-aliquot", built()?.join("kubectl-aliquot"), ""),
        ] {
            let (kubeconfig, program) = (kubeconfig.display(), program.display());
            let text = format!("#!/bin/sh\nKUBECONFIG={kubeconfig} exec {program} {verb}\"$@\"\n");
            let path = folder.join(name);
            std::fs::write(&path, text)?;
            std::fs::set_permissions(&path, Permissions::from_mode(0o755))?;
        }
        Ok(())
    }

    /// The chart's values for the machine's own GPUs where NVML finds some, else for two simulated ones.
    fn values(&self) -> Result<(Value, String)> {
        let found = Nvml::open(aliquot_nvml::Options::default()).and_then(|nvml| nvml.inventory());
        let models: Vec<String> = found
            .map(|inventory| inventory.gpus.into_iter().map(|gpu| gpu.model).collect())
            .unwrap_or_default();
        if models.is_empty() {
            let values = values_for(&self.cluster)?;
            open_machine(&self.cluster)?;
            let simulated = "two simulated NVIDIA A100-SXM4-80GB (no GPU found here)";
            return Ok((values, simulated.to_owned()));
        }
        let mut values = image_values()?;
        values["devicePlugin"] = json!({
            "nvidiaDriverRoot": "/",
            "stateDir": self.files.join("aliquot"),
            "cdiDir": self.cluster.cdi_dir(),
        });
        Ok((
            values,
            format!("this machine's GPUs: {}", models.join(", ")),
        ))
    }

    /// As the quick start does.
    async fn install(&self, values: &Value) -> Result<()> {
        self.cluster.namespace(NAMESPACE).await?;
        let privileged = "pod-security.kubernetes.io/enforce=privileged";
        self.kubectl(&["label", "namespace", NAMESPACE, privileged])
            .await?;
        let file = self.files.join("values.json");
        std::fs::write(&file, values.to_string())?;
        let (file, kubeconfig) = (file.display(), self.cluster.kubeconfig());
        let (values, kubeconfig) = (format!("-f={file}"), kubeconfig.display());
        let kubeconfig = format!("--kubeconfig={kubeconfig}");
        println!("helm install aliquot charts/aliquot -n {NAMESPACE} -f {file}");
        helm(&[
            "install",
            "aliquot",
            &chart(),
            "-n",
            NAMESPACE,
            &values,
            &kubeconfig,
        ])?
        .success()?;
        Ok(())
    }

    /// Applies both, and prints what each was given.
    async fn pods_run(&self) -> Result<()> {
        println!("their image is {}, with a C library", limits_program::IMAGE);
        for pod in PODS {
            self.apply(pod).await?;
        }
        let mut gpus = BTreeSet::new();
        for pod in PODS {
            let running = self.cluster.wait_running("default", pod).await?;
            let allocation = allocation(&running)?;
            let [grant] = allocation.grants("main").context("main has a share")? else {
                bail!("{pod} has several GPUs");
            };
            let (gpu, memory, cores) = (&grant.gpu, grant.memory, grant.cores);
            println!("{pod}: {gpu}, {memory}, {cores} of its compute");
            gpus.insert(gpu.clone());
        }
        ensure!(gpus.len() == 1, "both on one GPU was expected: {gpus:?}");
        Ok(())
    }

    /// Runs `examples/limits.c` in all pods at the same time, and prints what it found. While both are busy,
    /// neither may get more than its share.
    async fn limits_hold(&self) -> Result<()> {
        let program = self.limits_program();
        let program = program.to_string_lossy();
        try_join_all(PODS.map(async |pod| {
            let copy = ["cp", &*program, &format!("{pod}:/tmp/limits")];
            self.kubectl(&copy).await
        }))
        .await?;
        let found = PODS.map(|pod| self.cluster.exec("default", pod, "main", &["/tmp/limits"]));
        let found = try_join_all(found).await?;
        for (pod, found) in PODS.iter().zip(&found) {
            for line in found.stdout.lines().chain(found.stderr.lines()) {
                println!("{pod}: {line}");
            }
        }
        for (pod, found) in PODS.iter().zip(&found) {
            match found.code {
                Some(0) => (),
                Some(2) => bail!("the limits of {pod} could not be tested"),
                _ => bail!("a limit of {pod} does not hold"),
            }
            let (share, got) = limits_program::compute(&found.stdout)?;
            ensure!(
                got <= share + TOLERANCE,
                "{pod} got {got} % of the compute beside a busy neighbour, expected: {share}"
            );
        }
        Ok(())
    }

    /// Applies an example, with an image in which CUDA programs run, and prints what kubectl printed,
    /// warnings too.
    async fn apply(&self, example: &str) -> Result<()> {
        let text = std::fs::read_to_string(top(&format!("examples/{example}.yaml")))?;
        ensure!(
            text.contains(BUSYBOX),
            "examples/{example}.yaml has no {BUSYBOX}"
        );
        let text = text.replace(BUSYBOX, limits_program::IMAGE);
        let file = self.files.join("example.yaml");
        std::fs::write(&file, text)?;
        let apply = ["apply", "-f", &*file.to_string_lossy()];
        let output = self.cluster.kubectl(&apply).await?;
        print!("{}{}", output.stderr, output.stdout);
        output.success().map(drop)
    }

    /// The scheduler's reason, as soon as there is one.
    async fn why_pending(&self, pod: &str) -> Result<String> {
        eventually(PATIENCE, "the reason why the pod is Pending", || async {
            let events = self.cluster.events("default", "Pod", pod).await?;
            let mut refusals = events
                .into_iter()
                .filter(|event| event.reason.as_deref() == Some("Refused"));
            let reason = refusals.next().and_then(|event| event.message);
            Ok(reason.map(|reason| format!("{pod} is Pending: {reason}")))
        })
        .await
    }

    async fn kubectl(&self, args: &[&str]) -> Result<String> {
        self.cluster.kubectl(args).await?.success()
    }

    /// Prints doctor's verdict; a finding is an error.
    async fn doctor(&self, flags: &[&str]) -> Result<()> {
        let arguments = [&["doctor"], flags].concat();
        let report = self.aliquot(&arguments).await?;
        let verdict = report.lines().last().unwrap_or_default();
        println!("kubectl aliquot {}: {verdict}", arguments.join(" "));
        ensure!(
            verdict.starts_with("0 problems, 0 warnings, 0 not checked"),
            "doctor found:\n{report}"
        );
        Ok(())
    }

    /// What our plugin prints, with an error where it ends with one.
    async fn aliquot(&self, args: &[&str]) -> Result<String> {
        let mut plugin = Command::new(self.files.join("bin/kubectl-aliquot"));
        let output = plugin.args(args).stdin(Stdio::null()).output().await?;
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(
            output.status.success(),
            "kubectl aliquot {}: {printed}{}",
            args.join(" "),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(printed)
    }
}
