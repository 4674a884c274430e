//! A cluster with a node, with images and a simulated driver for the agent's pod.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use aliquot_chart::simulated_node::{image, kube_scheduler, unload, values_for};
use aliquot_chart::{NAMESPACE, chart, helm, release, top};
use aliquot_cluster::Cluster;
use aliquot_cluster::until;
use aliquot_cluster::wait::{OrNotYet as _, eventually};
use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use crate::helm_on;

pub(crate) use aliquot_cluster::NODE;

pub(crate) const PATIENCE: Duration = Duration::from_mins(3);

pub(crate) struct World {
    pub(crate) cluster: Arc<Cluster>,
    package: String,
    values: String,
}

/// The commands under `## Uninstall` of the guide.
pub(crate) fn removing() -> Result<Vec<String>> {
    let guide = std::fs::read_to_string(top("docs/guides/upgrade.md"))?;
    let (_, rest) = guide.split_once("## Uninstall\n").context("no Uninstall")?;
    let block = rest.split("```").nth(1).context("no commands")?;
    let lines = block.trim_start_matches("sh\n").lines();
    let commands: Vec<String> = lines.map(str::to_owned).collect();
    ensure!(!commands.is_empty(), "no command");
    Ok(commands)
}

impl World {
    /// With the checkout's chart, and images that are loaded already.
    pub(crate) async fn on(cluster: Arc<Cluster>) -> Result<Self> {
        let mut world = Self::empty(cluster).await?;
        image(&world.cluster).await?;
        let state = world.cluster.state_dir().to_owned();
        world.write_values(&values_for(&world.cluster)?)?;
        let package = helm(&["package", &chart(), "-d", &state.to_string_lossy()])?;
        let package = package.success()?;
        let package = package.rsplit(' ').next().unwrap_or_default().trim();
        let name = format!("aliquot-{}.tgz", release::version()?);
        ensure!(package.ends_with(&name), "{package}");
        package.clone_into(&mut world.package);
        Ok(world)
    }

    /// With the chart of a release, whose images only this registry has.
    pub(crate) async fn released(
        cluster: Arc<Cluster>,
        chart: String,
        registry: &str,
    ) -> Result<Self> {
        let mut world = Self::empty(cluster).await?;
        unload(&world.cluster).await?;
        let mut values = values_for(&world.cluster)?;
        let kube_scheduler = values["scheduler"]["kubeScheduler"].as_object_mut();
        let kube_scheduler = kube_scheduler.context("no kube-scheduler")?;
        kube_scheduler.retain(|key, _| key == "command");
        let all = values.as_object_mut().context("no values")?;
        all.remove("image").context("no image")?;
        all.insert("global".to_owned(), json!({"imageRegistry": registry}));
        world.write_values(&values)?;
        world.package = chart;
        Ok(world)
    }

    async fn empty(cluster: Arc<Cluster>) -> Result<Self> {
        // By the time the image is loaded, Kubernetes has filled the namespace.
        cluster.namespace(NAMESPACE).await?;
        kube_scheduler(&cluster).await?;
        Ok(Self {
            cluster,
            package: String::new(),
            values: String::new(),
        })
    }

    fn write_values(&mut self, values: &Value) -> Result<()> {
        let file = self.cluster.state_dir().join("values.json");
        std::fs::write(&file, values.to_string())?;
        self.values = file.to_string_lossy().into_owned();
        Ok(())
    }

    /// Chart and values as arguments of helm.
    pub(crate) fn chart(&self) -> [&str; 3] {
        [&self.package, "-f", &self.values]
    }

    pub(crate) fn helm(&self, arguments: &[&str]) -> Result<String> {
        helm_on(&self.cluster, arguments)?.success()
    }

    /// A command of the guide.
    pub(crate) async fn sh(&self, line: &str) -> Result<()> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let config = self.cluster.kubeconfig().to_string_lossy().into_owned();
        match words.as_slice() {
            ["helm", rest @ ..] => {
                // The guide's checkout directory is the package here.
                let rest = rest.iter().map(|&word| match word {
                    "charts/aliquot" => self.package.as_str(),
                    word => word,
                });
                let mut all: Vec<&str> = rest.collect();
                all.extend(["--kubeconfig", &config]);
                helm(&all)?.success()?;
            }
            ["kubectl", rest @ ..] => {
                // The API server drops a policy a moment after its deletion.
                eventually(PATIENCE, line, || async {
                    self.cluster
                        .kubectl(rest)
                        .await?
                        .success()
                        .or_not_yet()
                        .map(Some)
                })
                .await?;
            }
            other => bail!("{other:?}"),
        }
        Ok(())
    }

    pub(crate) async fn json(&self, request: &[&str]) -> Result<Value> {
        let mut all = request.to_vec();
        all.extend(["-o", "json"]);
        let text = self.cluster.kubectl(&all).await?.success()?;
        Ok(serde_json::from_str(&text)?)
    }

    pub(crate) async fn inventory(&self) -> Result<Value> {
        let node = self.json(&["get", "node", NODE]).await?;
        let text = &node["metadata"]["annotations"]["aliquot.dev/inventory"];
        let text = text.as_str().context("no inventory")?;
        Ok(serde_json::from_str(text)?)
    }

    /// Waits until every pod of Aliquot exists and is ready.
    pub(crate) async fn parts_ready(&self) -> Result<()> {
        eventually(PATIENCE, "all pods of Aliquot to be ready", || async {
            let expected = self.json(&["get", "deployments", "-n", NAMESPACE]).await?;
            let expected = expected["items"].as_array().context("no list")?.iter();
            let expected = expected.filter_map(|one| one["spec"]["replicas"].as_u64());
            let expected = expected.sum::<u64>();
            let pods = self.json(&["get", "pods", "-n", NAMESPACE]).await?;
            let pods = pods["items"].as_array().context("no list")?;
            // And the agent and the monitor of the only node.
            let found = u64::try_from(pods.len())?;
            until!(found == expected + 2, "{found} pods");
            for pod in pods {
                let conditions = pod["status"]["conditions"].as_array();
                let mut conditions = conditions.into_iter().flatten();
                let ready = |one: &Value| one["type"] == "Ready" && one["status"] == "True";
                until!(conditions.any(ready), "{}", pod["metadata"]["name"]);
            }
            Ok(Some(()))
        })
        .await
    }

    /// Waits until the kubelet counts replicas again, which it does not while the agent is down.
    pub(crate) async fn kubelet_counts_replicas(&self) -> Result<()> {
        eventually(PATIENCE, "the kubelet to count replicas", || async {
            let node = self.json(&["get", "node", NODE]).await?;
            let replicas = node["status"]["allocatable"]["nvidia.com/gpu"].as_str();
            until!(
                replicas.is_some_and(|replicas| replicas != "0"),
                "{replicas:?}"
            );
            Ok(Some(()))
        })
        .await
    }

    /// Every object of the cluster, except those that come and go by themselves.
    pub(crate) async fn listing(&self) -> Result<BTreeSet<String>> {
        let list = ["api-resources", "--verbs=list", "-o", "name"];
        let kinds = self.cluster.kubectl(&list).await?.success()?;
        let kinds: Vec<&str> = kinds.lines().filter(|k| !k.starts_with("events")).collect();
        let kinds = kinds.join(",");
        let get = ["get", &kinds, "-A", "-o", "name"];
        let names = self.cluster.kubectl(&get).await?.success()?;
        // The API server and the kubelet create their leases some time after their start.
        let lease = "lease.coordination.k8s.io/";
        let passing = [format!("{lease}apiserver-"), format!("{lease}{NODE}")];
        let own = |name: &&str| !passing.iter().any(|begin| name.starts_with(begin));
        Ok(names.lines().filter(own).map(str::to_owned).collect())
    }

    /// Files in the node's directories that Aliquot may write, and mounts below them.
    pub(crate) fn host(&self) -> Result<BTreeSet<String>> {
        let state = self.cluster.state_dir();
        let plugins = self.cluster.kubelet_dir().join("device-plugins");
        let mut found = BTreeSet::new();
        for folder in [state.join("parts"), self.cluster.cdi_dir(), plugins] {
            files(&folder, &mut found)?;
        }
        // The kubelet's own checkpoint.
        found.retain(|path| !path.ends_with("/kubelet_internal_checkpoint"));
        let node = self.cluster.pid("mounts")?;
        let table = std::fs::read_to_string(format!("/proc/{node}/mountinfo"))?;
        let parts = state.join("parts").to_string_lossy().into_owned();
        let points = table.lines().filter_map(|line| line.split(' ').nth(4));
        let ours = points.filter(|point| point.starts_with(&parts));
        found.extend(ours.map(|point| format!("mount {point}")));
        Ok(found)
    }

    /// A scenario's outcome; an error with what the cluster tells of its pods.
    pub(crate) async fn reported(&self, outcome: Result<()>) -> Result<()> {
        match outcome {
            Ok(()) => Ok(()),
            Err(error) => bail!("{error:#}\n{}", self.report().await),
        }
    }

    async fn report(&self) -> String {
        let mut text = String::new();
        let selector = "app.kubernetes.io/part-of=aliquot";
        let logs = [
            "logs",
            "-n",
            NAMESPACE,
            "-l",
            selector,
            "--all-containers",
            "--prefix",
            "--tail=3",
        ];
        let asked: [&[&str]; 3] = [
            &["get", "pods", "-A", "-o", "wide"],
            &["get", "events", "-A", "--field-selector=type=Warning"],
            &logs,
        ];
        for request in asked {
            if let Ok(output) = self.cluster.kubectl(request).await {
                text.extend([output.stdout, output.stderr, "\n".to_owned()]);
            }
        }
        text
    }
}

/// Everything below a folder.
fn files(folder: &Path, found: &mut BTreeSet<String>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        found.insert(path.to_string_lossy().into_owned());
        if path.is_dir() && !path.is_symlink() {
            files(&path, found)?;
        }
    }
    Ok(())
}
