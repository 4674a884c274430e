//! An upgrade of the agents on a real API server with its controllers: at most a tenth of the nodes is
//! without its agent at any time, and the pods of MPS stay.

use std::collections::BTreeSet;
use std::time::Duration;

use aliquot_chart::{IMAGE, NAMESPACE, chart, helm};
use aliquot_cluster::Cluster;
use aliquot_cluster::until;
use aliquot_cluster::wait::eventually;
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use serde_json::json;

const PATIENCE: Duration = Duration::from_mins(5);
const NODES: usize = 30;
/// A tenth of them.
const AWAY: usize = 3;
const PODS: &str = "app.kubernetes.io/component=device-plugin";
const MPS: &str = "app.kubernetes.io/component=mps";

/// The uids of the pods with MPS daemons that are not terminating.
async fn mps_pods(pods: &Api<Pod>) -> Result<BTreeSet<String>> {
    let found = pods.list(&ListParams::default().labels(MPS)).await?.items;
    let stay = found.into_iter().map(|pod| pod.metadata);
    let stay = stay.filter(|pod| pod.deletion_timestamp.is_none());
    Ok(stay.filter_map(|pod| pod.uid).collect())
}

/// Acts as the kubelets of all nodes: terminating pods are deleted, scheduled ones become ready. Returns
/// how many pods were ready before, and how many of those have this generation of the template.
async fn played(pods: &Api<Pod>, generation: &str) -> Result<(usize, usize)> {
    let (mut ready, mut new) = (0, 0);
    for pod in pods.list(&ListParams::default().labels(PODS)).await?.items {
        let name = pod.metadata.name.clone().context("a name")?;
        if pod.metadata.deletion_timestamp.is_some() {
            let at_once = DeleteParams::default().grace_period(0);
            pods.delete(&name, &at_once).await?;
            continue;
        }
        let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
        let is_ready = |conditions: &Vec<_>| conditions.iter().any(is_ready);
        if conditions.is_some_and(is_ready) {
            let labels = pod.metadata.labels.unwrap_or_default();
            let own = labels.get("pod-template-generation");
            ready += 1;
            new += usize::from(own.is_some_and(|own| own == generation));
        } else if pod.spec.is_some_and(|spec| spec.node_name.is_some()) {
            let status = json!({"status": {"phase": "Running",
                "conditions": [{"type": "Ready", "status": "True"}]}});
            let patch = Patch::Strategic(status);
            pods.patch_status(&name, &PatchParams::default(), &patch)
                .await?;
        }
    }
    Ok((ready, new))
}

fn is_ready(condition: &k8s_openapi::api::core::v1::PodCondition) -> bool {
    condition.type_ == "Ready" && condition.status == "True"
}

async fn rolled(cluster: &Cluster) -> Result<()> {
    let config = cluster.kubeconfig().to_string_lossy().into_owned();
    let chart = chart();
    let run = |arguments: &[&str]| {
        let common = [&*chart, "-n", NAMESPACE, IMAGE, "--kubeconfig", &config];
        helm(&[arguments, &common].concat())?.success()
    };
    for number in 0..NODES {
        let name = format!("gpu-{number}");
        cluster.fake_node(&name, &[("gpu", "on")], &[]).await?;
    }
    let with_mps = ["--set", "devicePlugin.mps.enabled=true"];
    run(&[&["install", "aliquot", "--create-namespace"][..], &with_mps].concat())?;
    let pods: Api<Pod> = Api::namespaced(cluster.admin()?, NAMESPACE);
    eventually(PATIENCE, "an agent on each node", || async {
        let (ready, _) = played(&pods, "1").await?;
        until!(ready == NODES, "{ready} of {NODES}");
        Ok(Some(()))
    })
    .await?;

    let mps = eventually(PATIENCE, "a pod for MPS on each node", || async {
        let found = mps_pods(&pods).await?;
        until!(found.len() == NODES, "{} of {NODES}", found.len());
        Ok(Some(found))
    })
    .await?;

    run(&[
        &["upgrade", "aliquot", "--set", "image.tag=next"][..],
        &with_mps,
    ]
    .concat())?;
    let least = std::sync::atomic::AtomicUsize::new(NODES);
    eventually(PATIENCE, "the next agent on each node", || async {
        let (ready, new) = played(&pods, "2").await?;
        least.fetch_min(ready, std::sync::atomic::Ordering::Relaxed);
        until!(new == NODES, "{new} of {NODES}, {ready} ready");
        Ok(Some(()))
    })
    .await?;
    ensure!(mps_pods(&pods).await? == mps, "a pod for MPS was replaced");
    let least = least.into_inner();
    // All agents that are down at the same time are seen together.
    ensure!(
        (NODES - AWAY..NODES).contains(&least),
        "{least} of {NODES} were there at the worst time"
    );
    Ok(())
}

#[tokio::test]
async fn upgrades_agents_on_a_tenth_of_nodes_at_a_time() {
    let cluster = Box::pin(Cluster::control_plane().start()).await;
    let cluster = cluster.expect("a cluster");
    rolled(&cluster).await.expect("a roll");
    cluster.stop().await.expect("an orderly end");
}
