//! An upgrade of the driver as GPU Operator's driver manager does it: it pauses the node by the labels of
//! its components, unloads the driver once nobody has it open, and resumes the node.

use aliquot_chart::NAMESPACE;
use aliquot_chart::simulated_node::machine;
use aliquot_cluster::until;
use aliquot_cluster::wait::{OrNotYet as _, eventually};
use aliquot_gpusim::SimulatedMachine;
use anyhow::{Context as _, Result, ensure};

use super::kubectl;
use super::world::{NODE, PATIENCE, World};

const LABEL: &str = "nvidia.com/gpu.deploy.device-plugin";
const PAUSED: &str = "paused-for-driver-upgrade";
const NEWER: &str = "590.44.01";

pub(crate) async fn driver_upgraded(world: &World) -> Result<()> {
    let machine = SimulatedMachine::at(&machine(&world.cluster));
    label(world, "true").await?;
    let error = machine.unload().err().context("it is open")?.to_string();
    for holder in ["aliquot-device", "aliquot-monitor"] {
        ensure!(error.contains(holder), "{error}");
    }
    label(world, PAUSED).await?;
    eventually(PATIENCE, "the pods to leave the node", || async {
        let component = "app.kubernetes.io/component in (device-plugin, monitor)";
        let list = ["get", "pods", "-n", NAMESPACE, "-l", component];
        let pods = world.json(&list).await?;
        let pods = pods["items"].as_array().context("no list")?.len();
        until!(pods == 0, "{pods} pods");
        Ok(Some(()))
    })
    .await?;
    machine.unload()?;
    machine.load(NEWER)?;
    label(world, "true").await?;
    eventually(PATIENCE, "the newer driver to be published", || async {
        let published = world.inventory().await.or_not_yet()?["driver"].clone();
        until!(published == NEWER, "{published}");
        Ok(Some(()))
    })
    .await?;
    world.parts_ready().await?;
    world.kubelet_counts_replicas().await?;
    kubectl(world, &format!("label node {NODE} {LABEL}-")).await?;
    Ok(())
}

async fn label(world: &World, value: &str) -> Result<()> {
    let set = format!("label node {NODE} {LABEL}={value} --overwrite");
    kubectl(world, &set).await.map(drop)
}
