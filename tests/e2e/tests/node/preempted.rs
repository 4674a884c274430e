//! A pod of high priority preempts others where pods really run.

use std::collections::BTreeSet;
use std::sync::Arc;

use aliquot_cluster::until;
use aliquot_cluster::wait::eventually;
use aliquot_e2e::figures::report;
use aliquot_e2e::pods::classes;
use aliquot_e2e::stack::Stack;
use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use serde_json::json;
use tokio::time::Instant;

use crate::running::{PATIENCE, Running};

const NAMESPACE: &str = "urgent";
/// Four of these fill a GPU of 81,920 MiB, and three free enough for [`URGENT`].
const LOW: u64 = 20_000;
const URGENT: u64 = 60_000;
/// Name, class and GPU. Only on the first GPU are three of the lowest class.
const TENANTS: [(&str, &str, usize); 8] = [
    ("batch-0", "batch", 0),
    ("batch-1", "batch", 0),
    ("batch-2", "batch", 0),
    ("normal-0", "normal", 0),
    ("batch-3", "batch", 1),
    ("batch-4", "batch", 1),
    ("normal-1", "normal", 1),
    ("normal-2", "normal", 1),
];
const VICTIMS: [&str; 3] = ["batch-0", "batch-1", "batch-2"];

/// On a full pair of GPUs the fewest right victims are evicted, and the pod runs with its share.
pub(crate) async fn full_pair(stack: Arc<Stack>) -> Result<()> {
    classes(&stack).await?;
    stack.cluster.namespace(NAMESPACE).await?;
    let machine = stack.machine().show()?;
    let gpu = |n: usize| machine["gpus"][n]["uuid"].as_str().context("a uuid");
    for (name, class, n) in TENANTS {
        let mut pod = Running::pod(NAMESPACE, name, LOW);
        pod["metadata"]["annotations"] = json!({"aliquot.dev/use-gpuuuid": gpu(n)?});
        pod["spec"]["priorityClassName"] = json!(class);
        stack.cluster.create_pod(pod).await?;
    }
    let started = TENANTS.map(|(name, ..)| Running::created(&stack, NAMESPACE, name));
    let tenants = try_join_all(started).await?;
    for (tenant, (name, _, n)) in tenants.iter().zip(TENANTS) {
        ensure!(tenant.share.gpu() == gpu(n)?, "{name}: {:?}", tenant.share);
    }

    let start = Instant::now();
    let mut urgent = Running::pod(NAMESPACE, "urgent", URGENT);
    urgent["spec"]["priorityClassName"] = json!("urgent");
    stack.cluster.create_pod(urgent).await?;
    let urgent = Running::created(&stack, NAMESPACE, "urgent").await?;
    report("a pod that preempted runs with its share", start.elapsed());
    ensure!(urgent.share.gpu() == gpu(0)?, "{:?}", urgent.share);
    let limit = urgent.share.environment.get("CUDA_DEVICE_MEMORY_LIMIT_0");
    ensure!(limit == Some(&format!("{URGENT}m")), "{limit:?}");

    let uids = |victims: bool| {
        let tenants = tenants.iter();
        let chosen = tenants.filter(move |t| VICTIMS.contains(&t.name.as_str()) == victims);
        chosen.map(|tenant| tenant.uid.clone())
    };
    let mut left: BTreeSet<String> = uids(false).collect();
    left.insert(urgent.uid.clone());
    let there = there(&stack).await?;
    ensure!(there == left, "{there:?} are there, not {left:?}");
    for name in VICTIMS {
        eventually(
            PATIENCE,
            &format!("an event about the eviction of {name}"),
            || async {
                let events = stack.event_texts(NAMESPACE, name).await?;
                let preempted =
                    |e: &String| e.starts_with("Preempted: ") && e.contains("urgent/urgent");
                until!(events.iter().any(preempted), "{events:?}");
                Ok(Some(()))
            },
        )
        .await?;
    }
    let remaining = tenants.iter().filter(|t| left.contains(&t.uid));
    try_join_all(remaining.map(|tenant| tenant.untouched(&stack))).await?;
    stack.ledger_agrees().await?;

    urgent.delete(&stack).await?;
    let remaining = tenants.iter().filter(|t| left.contains(&t.uid));
    try_join_all(remaining.map(|tenant| tenant.delete(&stack))).await?;
    Ok(())
}

/// The uids of the pods that exist and are not being deleted: a pod that has ended frees its share
/// before its object is gone.
async fn there(stack: &Stack) -> Result<BTreeSet<String>> {
    let pods: Api<Pod> = Api::namespaced(stack.cluster.admin()?, NAMESPACE);
    let pods = pods.list(&ListParams::default()).await?.items;
    let there = pods.into_iter();
    let there = there.filter(|pod| pod.metadata.deletion_timestamp.is_none());
    Ok(there.filter_map(|pod| pod.metadata.uid).collect())
}
