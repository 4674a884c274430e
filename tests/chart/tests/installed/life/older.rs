//! An upgrade from an older release while pods run, a rollback to it, and the upgrade again, by Helm 4. The
//! older one is of an earlier version, has a part of the chart less and another library in its image.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use aliquot_chart::image::LIMITER;
use aliquot_chart::release::{success, version};
use aliquot_chart::simulated_node::{archive_with, built, load};
use aliquot_chart::{NAMESPACE, helm_4};
use aliquot_cluster::Cluster;
use aliquot_cluster::until;
use aliquot_cluster::wait::{OrNotYet as _, eventually};
use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use super::shown::output_of;
use super::world::{PATIENCE, World};
use super::{Before, GPU, applied, container_of, example_runs, has_its_share, pod};
use crate::lifecycle::{OLDER, documented, older};
use crate::{ChartCluster, run_on};

/// The tag of the older image.
const TAG: &str = "older";

pub(crate) async fn upgraded(chart: Arc<ChartCluster>) -> Result<()> {
    let world = Box::pin(World::on(chart.cluster.clone())).await?;
    let walked = Box::pin(walk(&world)).await;
    world.reported(walked).await
}

async fn walk(world: &World) -> Result<()> {
    let before = Before::of(world).await?;
    let folder = world.cluster.state_dir().join("older");
    std::fs::create_dir_all(&folder)?;
    older_image(&world.cluster, &folder).await?;
    let chart = older(&folder)?;
    let [_, values @ ..] = world.chart();
    let tag = format!("--set=image.tag={TAG}");
    let mut install = vec!["install", "aliquot", &chart, &tag];
    install.extend(values);
    helm(world, &install)?;
    rolled_out(world, OLDER).await?;
    example_runs(world).await?;
    let running = container_of(world).await?;
    let loaded = library(world, "gpu-pod").await?;
    let runs_on = async |what: &str, allocated: &str| {
        let now = container_of(world).await?;
        ensure!(now == running, "{what}: {now:?} was {running:?}");
        let library = library(world, "gpu-pod").await?;
        ensure!(library == loaded, "{what}: {library} was {loaded}");
        let counted = allocated_is(world, allocated).await;
        counted.context(what.to_owned())
    };
    runs_on("installed", "3000/162572").await?;

    let flags = documented()?;
    let mut upgrade = vec!["upgrade", "aliquot"];
    upgrade.extend(world.chart());
    upgrade.extend(flags.iter().map(String::as_str));
    helm(world, &upgrade)?;
    rolled_out(world, &version()?).await?;
    runs_on("upgraded", "3000/162572").await?;
    world.kubelet_counts_replicas().await?;
    let limits = json!({GPU: 1, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30});
    applied(world, &pod("later", &limits)).await?;
    has_its_share(world, "later", "aliquot-scheduler").await?;
    let newer = library(world, "later").await?;
    ensure!(newer != loaded, "the next pod has the old library");

    helm(world, &["rollback", "aliquot", "1"])?;
    rolled_out(world, OLDER).await?;
    runs_on("rolled back", "6000/162572").await?;
    helm(world, &upgrade)?;
    rolled_out(world, &version()?).await?;
    runs_on("upgraded again", "6000/162572").await?;
    ensure!(library(world, "later").await? == newer);

    for name in ["gpu-pod", "later"] {
        world.cluster.delete_pod("default", name).await?;
    }
    helm(world, &["uninstall", "aliquot", "--wait"])?;
    before.again(world, &[]).await
}

fn helm(world: &World, arguments: &[&str]) -> Result<()> {
    let output = run_on(&world.cluster, helm_4, arguments)?;
    output.success().map(drop)
}

/// Loads the image with another library: the built one with one more section.
async fn older_image(cluster: &Cluster, folder: &Path) -> Result<()> {
    let built = built()?;
    for file in LIMITER {
        std::fs::copy(built.join(file), folder.join(file))?;
    }
    let note = folder.join("note");
    std::fs::write(&note, OLDER)?;
    let mut copy = Command::new("objcopy");
    copy.arg(format!("--add-section=.older={}", note.display()));
    copy.args([built.join("libvgpu.so"), folder.join("libvgpu.so")]);
    success(&mut copy)?;
    let archive = folder.join("aliquot.tar");
    let name = format!("localhost/aliquot:{TAG}");
    archive_with(&archive, &name, folder).await?;
    load(cluster, &archive).await
}

/// The library that a container has, by its checksum.
async fn library(world: &World, name: &str) -> Result<String> {
    let sum = ["sha256sum", "/.aliquot/lib/libvgpu.so"];
    let sum = world.cluster.exec("default", name, "main", &sum);
    sum.await?.success()
}

/// Waits until all pods of Aliquot are of this version, and ready.
async fn rolled_out(world: &World, version: &str) -> Result<()> {
    eventually(PATIENCE, "all pods to be of one version", || async {
        let pods = world.json(&["get", "pods", "-n", NAMESPACE]).await?;
        for pod in pods["items"].as_array().context("no list")? {
            let found = &pod["metadata"]["labels"]["app.kubernetes.io/version"];
            until!(found == version, "{}: {found}", pod["metadata"]["name"]);
        }
        Ok(Some(()))
    })
    .await?;
    world.parts_ready().await
}

/// Waits until the scheduler counts this memory, of the node's.
async fn allocated_is(world: &World, memory: &str) -> Result<()> {
    eventually(PATIENCE, "the scheduler to count the shares", || async {
        // On standard error it says that no scheduler answered.
        let nodes = output_of(world, &["top", "nodes"], 0).await.or_not_yet()?;
        until!(nodes.contains(memory), "{nodes}");
        Ok(Some(()))
    })
    .await
}
