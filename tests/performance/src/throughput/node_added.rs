//! How soon a pod is bound after a node is added, when kube-scheduler refused the pod before because
//! no node has enough CPU, without asking our scheduler.
//!
//! The node comes as in a real cluster: first what the kubelet registers, then the GPUs that the
//! device plugin reports, then the inventory. Each node has enough CPU for one pod.

use std::time::{Duration, Instant};

use aliquot_cluster::until;
use aliquot_cluster::wait::eventually;
use aliquot_style::figures::Figure;
use anyhow::Result;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::cluster::{BenchCluster, capacity, post};
use super::run::Workload;
use crate::cluster;

/// Nodes that are added for each form.
const NODES: usize = 100;
/// Deadline of one pod.
const DEADLINE: Duration = Duration::from_mins(7);
/// Short name, pods, and the promised time.
const FORMS: [(&str, Workload, Duration); 2] = [
    ("annotation", Workload::Annotation, Duration::from_secs(2)),
    ("resources", Workload::Share, Duration::from_secs(10)),
];

pub(crate) async fn measure() -> Result<Vec<Figure>> {
    let cluster = BenchCluster::start(0).await?;
    // A node that no pod fits on: without any, kube-scheduler tries again upon every event.
    let full = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "full"},
        "status": {"allocatable": {"cpu": "1", "memory": "1Gi", "pods": "250"}}});
    post(&cluster.client, "/api/v1/nodes", &full).await?;
    let ours = cluster.start_scheduler().await?;
    let plain = times(&cluster, Workload::Plain, 0).await?;
    let mut figures = Vec::new();
    for (at, (form, workload, within)) in FORMS.into_iter().enumerate() {
        let times = times(&cluster, workload, (at + 1) * NODES).await?;
        figures.push(figure(form, &times, &plain, within));
    }
    ours.terminate(DEADLINE).await?;
    cluster.stop().await?;
    Ok(figures)
}

fn figure(form: &str, times: &[f64], plain: &[f64], within: Duration) -> Figure {
    let within_s = within.as_secs();
    let soon = |times: &[f64]| {
        let soon = times.iter().filter(|time| **time <= within.as_secs_f64());
        u32::try_from(soon.count()).map_or(f64::NAN, f64::from)
    };
    Figure {
        name: format!("node_added_within_{within_s}_s_{form}"),
        value: soon(times),
        unit: "pods",
        baseline: soon(plain),
        what: format!(
            "of {NODES} pods in the form of {form}, refused by kube-scheduler for lack of CPU, bound within \
             {within_s} s after a node was added (p99 {:.2} s); baseline: pods with one plain extended resource",
            times[NODES * 99 / 100 - 1]
        ),
    }
}

/// Seconds from a node's creation to the Binding of the pod that waited for it, sorted.
async fn times(cluster: &BenchCluster, workload: Workload, first: usize) -> Result<Vec<f64>> {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), workload.name());
    let path = format!("/api/v1/namespaces/{}/pods", workload.name());
    let mut times = Vec::with_capacity(NODES);
    for number in first..first + NODES {
        let name = format!("waits-{number}");
        let mut pod = workload.pod(&name);
        pod["spec"]["containers"][0]["resources"]["requests"] = json!({"cpu": "100"});
        post(&cluster.client, &path, &pod).await?;
        eventually(DEADLINE, "the pod to be refused", || async {
            let status = pods.get(&name).await?.status;
            let conditions = status.and_then(|status| status.conditions);
            until!(
                conditions
                    .iter()
                    .flatten()
                    .any(|c| c.reason.as_deref() == Some("Unschedulable")),
                "{conditions:?}"
            );
            Ok(Some(()))
        })
        .await?;
        let start = Instant::now();
        add_node(cluster, number).await?;
        eventually(DEADLINE, "the pod to be bound", || async {
            let pod = pods.get(&name).await?;
            let node = pod.spec.and_then(|spec| spec.node_name);
            until!(node.is_some(), "{:?}", pod.status);
            Ok(Some(()))
        })
        .await?;
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}

async fn add_node(cluster: &BenchCluster, number: usize) -> Result<()> {
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let whole = cluster::node(number)?;
    let name = cluster::name(number);
    let before = json!({"cpu": "128", "memory": "2Ti", "pods": "250"});
    let registered = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
        "status": {"capacity": before, "allocatable": before}});
    post(&cluster.client, "/api/v1/nodes", &registered).await?;
    let with_gpus = json!({"status": {"capacity": capacity(), "allocatable": capacity()}});
    let params = PatchParams::default();
    nodes
        .patch_status(&name, &params, &Patch::Merge(with_gpus))
        .await?;
    let inventory = json!({"metadata": {"annotations": whole.metadata.annotations}});
    nodes
        .patch_metadata(&name, &params, &Patch::Merge(inventory))
        .await?;
    Ok(())
}
