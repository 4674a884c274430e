//! The packaged chart on a real node, with images built here: its own pods with their own permissions,
//! over the cluster's network. Only the GPU is simulated.

pub(crate) mod cert_manager;
mod driver_upgrade;
pub(crate) mod enforced;
pub(crate) mod external;
pub(crate) mod older;
pub(crate) mod quick_start;
pub(crate) mod registry;
mod shown;
mod world;

pub(crate) use world::NODE;

use std::collections::BTreeSet;
use std::sync::Arc;

use aliquot_chart::top;
use aliquot_cluster::until;
use aliquot_cluster::wait::{OrNotYet as _, eventually};
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use world::{PATIENCE, World};

use crate::ChartCluster;

const GPU: &str = "nvidia.com/gpu";

/// The parts of a node that Aliquot may change: labels and annotations, condition types, capacity.
fn own_fields(node: &Value) -> Value {
    let conditions = node["status"]["conditions"].as_array();
    let kinds = conditions.into_iter().flatten();
    let kinds: BTreeSet<&str> = kinds.filter_map(|one| one["type"].as_str()).collect();
    let keys = |place: &str| -> BTreeSet<String> {
        let keys = node["status"][place].as_object().into_iter().flatten();
        // The kubelet leaves it at 0, which is checked separately.
        let keys = keys.map(|(key, _)| key.clone()).filter(|key| key != GPU);
        keys.collect()
    };
    // Kubernetes' own controllers write some time after a node has joined.
    let entries = |place: &str| -> BTreeSet<(String, String)> {
        let all = node["metadata"][place].as_object().into_iter().flatten();
        let all = all.filter(|(key, _)| !key.contains("kubernetes.io/"));
        all.map(|(key, value)| (key.clone(), value.to_string()))
            .collect()
    };
    json!({
        "labels": entries("labels"),
        "annotations": entries("annotations"),
        "taints": node["spec"]["taints"],
        "conditions": kinds,
        "capacity": keys("capacity"),
        "allocatable": keys("allocatable"),
    })
}

/// The running container, and its restart count.
async fn container_of(world: &World) -> Result<(Value, Value)> {
    let pod = world.json(&["get", "pod", "gpu-pod"]).await?;
    let status = &pod["status"]["containerStatuses"][0];
    ensure!(status["state"]["running"].is_object(), "{status}");
    Ok((
        status["containerID"].clone(),
        status["restartCount"].clone(),
    ))
}

async fn scaled_is(world: &World, times: u64) -> Result<()> {
    eventually(PATIENCE, "the node to promise another amount", || async {
        let inventory = world.inventory().await?;
        let gpu = &inventory["gpus"][0];
        let (memory, scaled) = (gpu["memory"].as_u64(), gpu["scaled"].as_u64());
        until!(memory.map(|memory| memory * times) == scaled, "{gpu}");
        Ok(Some(()))
    })
    .await?;
    world.parts_ready().await
}

/// The state of node and cluster before the installation.
struct Before {
    objects: BTreeSet<String>,
    node: Value,
    host: BTreeSet<String>,
}

impl Before {
    async fn of(world: &World) -> Result<Self> {
        Ok(Self {
            objects: world.listing().await?,
            node: own_fields(&world.json(&["get", "node", NODE]).await?),
            host: world.host()?,
        })
    }

    /// Waits until only objects are left that existed before or whose name has this prefix.
    async fn again(&self, world: &World, but: &[&str]) -> Result<()> {
        eventually(PATIENCE, "nothing to be left", || async {
            // What is being removed cannot be listed for a moment.
            let now = Self::of(world).await.or_not_yet()?;
            let kept = |name: &&String| !but.iter().any(|begin| name.starts_with(begin));
            let left: Vec<&String> = now.objects.difference(&self.objects).filter(kept).collect();
            until!(left.is_empty(), "{left:?}");
            until!(now.node == self.node, "{}\nwas\n{}", now.node, self.node);
            let node = world.json(&["get", "node", NODE]).await?;
            for place in ["capacity", "allocatable"] {
                let replicas = node["status"][place][GPU].as_str();
                until!(
                    replicas.is_none_or(|replicas| replicas == "0"),
                    "{place}: {replicas:?}"
                );
            }
            if but.is_empty() {
                let left: Vec<&String> = now.host.difference(&self.host).collect();
                until!(left.is_empty(), "{left:?}");
            }
            Ok(Some(()))
        })
        .await
    }
}

/// What kubectl prints; no word of the line has a blank.
async fn kubectl(world: &World, line: &str) -> Result<String> {
    let words: Vec<&str> = line.split(' ').collect();
    world.cluster.kubectl(&words).await?.success()
}

async fn applied(world: &World, object: &Value) -> Result<()> {
    let file = world.cluster.state_dir().join("applied.json");
    std::fs::write(&file, object.to_string())?;
    let apply = ["apply", "-f", &*file.to_string_lossy()];
    world.cluster.kubectl(&apply).await?.success()?;
    Ok(())
}

/// More than a GPU's memory; it runs with a memory scaling of 5.
fn large(name: &str) -> Value {
    pod(name, &json!({GPU: 1, "nvidia.com/gpumem": 100_000}))
}

fn pod(name: &str, limits: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [{
            "name": "main", "image": "localhost/busybox:1", "command": ["sleep", "100000"],
            "resources": {"limits": limits},
        }]},
    })
}

/// Installs with these values first.
async fn installed(world: &World, values: &[&str]) -> Result<()> {
    let [package, rest @ ..] = world.chart();
    let mut install = vec!["install", "aliquot", package];
    install.extend_from_slice(values);
    install.extend(rest);
    world.helm(&install)?;
    world.parts_ready().await?;
    scaled_is(world, 1).await
}

/// With HAMi's own values, except for images and driver paths, HAMi's first example pod runs with HAMi's
/// schedulerName.
async fn with_hamis_values(world: &World) -> Result<()> {
    let values = top("tests/chart/values/hami.yaml");
    installed(world, &["-f", &*values.to_string_lossy()]).await?;
    let example = top("tests/e2e/tests/sharing/hami/examples/default_use.yaml");
    let apply = ["apply", "-f", &*example.to_string_lossy()];
    world.kubelet_counts_replicas().await?;
    world.cluster.kubectl(&apply).await?.success()?;
    has_its_share(world, "default-use", "hami-scheduler").await?;
    world.cluster.delete_pod("default", "default-use").await
}

/// The README's first pod gets its share.
async fn example_runs(world: &World) -> Result<()> {
    let example = top("examples/gpu-pod.yaml");
    let apply = ["apply", "-f", &*example.to_string_lossy()];
    world.cluster.kubectl(&apply).await?.success()?;
    has_its_share(world, "gpu-pod", "aliquot-scheduler").await
}

/// A pod with 3000 MiB and 30 % runs, and sees these limits.
async fn has_its_share(world: &World, name: &str, scheduler: &str) -> Result<()> {
    world.cluster.wait_running("default", name).await?;
    let seen = world.cluster.exec("default", name, "main", &["env"]);
    let seen = seen.await?.success()?;
    for line in [
        "CUDA_DEVICE_MEMORY_LIMIT_0=3000m",
        "CUDA_DEVICE_SM_LIMIT=30",
    ] {
        ensure!(seen.lines().any(|one| one == line), "{line}: {seen}");
    }
    let pod = world.json(&["get", "pod", name]).await?;
    ensure!(pod["spec"]["schedulerName"] == scheduler, "{name}");
    Ok(())
}

/// Uninstalls with the commands of docs/guides/upgrade.md.
async fn removed(world: &World) -> Result<()> {
    for line in world::removing()? {
        world.sh(&line).await?;
    }
    Ok(())
}

async fn life(world: &World) -> Result<()> {
    let before = Before::of(world).await?;
    installed(world, &[]).await?;

    // The webhook answers through its Service.
    example_runs(world).await?;
    let running = container_of(world).await?;
    let runs_on = async |what: &str| {
        let now = container_of(world).await?;
        ensure!(now == running, "{what}: {now:?} was {running:?}");
        let files = ["ls", "/.aliquot/limits", "/.aliquot/counters/slots"];
        let there = world.cluster.exec("default", "gpu-pod", "main", &files);
        there.await?.success().context(what.to_owned())
    };
    runs_on("installed").await?;

    // Another scaling changes what can be allocated, and does not affect running pods.
    applied(world, &large("before")).await?;
    let refused = world
        .cluster
        .wait_pod("default", "before", "to be refused", |pod| {
            let conditions = pod
                .status
                .iter()
                .flat_map(|s| s.conditions.iter().flatten());
            let mut conditions = conditions.filter_map(|one| one.message.as_deref());
            Ok(conditions.any(|text| text.contains("CardInsufficientMemory")))
        });
    refused.await?;
    shown::shown(world, "before").await?;
    let mut upgrade = vec!["upgrade", "aliquot"];
    upgrade.extend(world.chart());
    upgrade.extend(["--set", "devicePlugin.deviceMemoryScaling=5"]);
    world.helm(&upgrade)?;
    scaled_is(world, 5).await?;
    world.kubelet_counts_replicas().await?;
    applied(world, &large("after")).await?;
    world.cluster.wait_running("default", "after").await?;
    runs_on("upgraded").await?;
    for name in ["before", "after"] {
        world.cluster.delete_pod("default", name).await?;
    }
    world.helm(&["rollback", "aliquot", "1"])?;
    scaled_is(world, 1).await?;
    runs_on("rolled back").await?;

    // The agent leaves the node while the driver is replaced.
    driver_upgrade::driver_upgraded(world).await?;
    runs_on("the driver is newer").await?;

    // Uninstalled while the pod runs: the pod continues, and the files that it uses stay.
    removed(world).await?;
    before.again(world, &["pod/gpu-pod"]).await?;
    runs_on("removed").await?;
    // A new installation, here with HAMi's values, takes the pod over.
    with_hamis_values(world).await?;
    runs_on("installed again").await?;
    world.cluster.delete_pod("default", "gpu-pod").await?;
    removed(world).await?;
    before.again(world, &[]).await
}

pub(crate) async fn pod_survives(chart: Arc<ChartCluster>) -> Result<()> {
    let world = Box::pin(World::on(chart.cluster.clone())).await?;
    let survived = Box::pin(life(&world)).await;
    world.reported(survived).await
}
