//! The extender for a kube-scheduler that is not the chart's, in the steps of docs/guides/install.md:
//! here that of the cluster, outside its pods. The webhook is on the node's network, too.

use std::path::Path;
use std::sync::Arc;

use aliquot_chart::NAMESPACE;
use anyhow::{Context as _, Result};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use serde_json::{Value, json};

use super::world::World;
use super::{example_runs, installed, kubectl, removed};
use crate::ChartCluster;

pub(crate) async fn places_a_share(chart: Arc<ChartCluster>) -> Result<()> {
    let world = Box::pin(World::on(chart.cluster.clone())).await?;
    let placed = Box::pin(placed(&world)).await;
    // Later scenarios and the removal need it as it was.
    chart.cluster.restart_scheduler_with(&[]).await?;
    world.reported(placed).await?;
    Box::pin(removed(&world)).await
}

async fn placed(world: &World) -> Result<()> {
    let cluster = &world.cluster;
    let service = format!("aliquot-extender.{NAMESPACE}.svc");
    let folder = cluster.state_dir().join("extender");
    certificates(&folder, &service)?;
    let secret = format!("extender -n {NAMESPACE} --from-file={}", folder.display());
    kubectl(world, &format!("create secret generic {secret}")).await?;
    // The chart takes the port after it for metrics.
    let port = cluster.part_address(1).port();
    let webhook = format!("--set=webhook.hostNetwork=true,webhook.replicas=1,webhook.port={port}");
    let values = [
        "--set=scheduler.kubeScheduler.enabled=false,scheduler.replicas=1",
        "--set=scheduler.extender.tlsSecret=extender",
        &webhook,
    ];
    installed(world, &values).await?;
    Box::pin(places_example(world, &folder, &service)).await
}

/// Restarts the cluster's kube-scheduler with the extender and the client certificate in the folder: the
/// example's pod gets its share.
pub(super) async fn places_example(world: &World, folder: &Path, service: &str) -> Result<()> {
    let cluster = &world.cluster;
    let config = configuration(world, folder, service).await?;
    cluster.restart_scheduler_as(&config).await?;
    world.kubelet_counts_replicas().await?;
    example_runs(world).await?;
    cluster.delete_pod("default", "gpu-pod").await
}

/// One pair for both sides, which is its own CA.
fn certificates(folder: &Path, service: &str) -> Result<()> {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed([service.to_owned()])?;
    std::fs::create_dir_all(folder)?;
    std::fs::write(folder.join("tls.crt"), cert.pem())?;
    std::fs::write(folder.join("ca.crt"), cert.pem())?;
    std::fs::write(folder.join("tls.key"), signing_key.serialize_pem())?;
    Ok(())
}

/// The chart's profile and extender for a kube-scheduler outside the pods' network, which has no
/// cluster DNS: at the pod's address, with the name of the Service.
async fn configuration(world: &World, folder: &Path, service: &str) -> Result<Value> {
    let map = [
        "get",
        "configmap",
        "aliquot-kube-scheduler",
        "-n",
        NAMESPACE,
    ];
    let map = world.json(&map).await?;
    let text = map["data"]["kube-scheduler.yaml"].as_str();
    let mut config: Value = serde_saphyr::from_str(text.context("no configuration")?)?;
    let label = "app.kubernetes.io/component=scheduler";
    let pods = ["get", "pods", "-n", NAMESPACE, "-l", label];
    let pods = world.json(&pods).await?;
    let address = pods["items"][0]["status"]["podIP"].as_str();
    let address = address.context("no scheduler")?;
    let extender = &mut config["extenders"][0];
    extender["urlPrefix"] = json!(format!("https://{address}:9397"));
    extender["tlsConfig"] = json!({
        "serverName": service,
        "caFile": folder.join("ca.crt"),
        "certFile": folder.join("tls.crt"),
        "keyFile": folder.join("tls.key"),
    });
    config["leaderElection"]["leaderElect"] = json!(false);
    let kubeconfig = world.cluster.state_dir().join("pki/scheduler.kubeconfig");
    config["clientConnection"]["kubeconfig"] = json!(kubeconfig);
    let profiles = config["profiles"].as_array_mut().context("no profiles")?;
    profiles.push(json!({"schedulerName": "default-scheduler"}));
    Ok(config)
}
