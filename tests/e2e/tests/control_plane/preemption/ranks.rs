//! Pods of three priorities on fake nodes, and which of them remain. The fake nodes have no
//! kubelet, so pods that may be evicted have no grace period.

use std::collections::BTreeSet;

use aliquot_cluster::until;
use aliquot_cluster::wait::{PATIENCE, eventually};
use aliquot_e2e::pool::Pool;
use aliquot_e2e::stack::Stack;
use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};

pub(crate) const PREEMPTION: &str = "aliquot.dev/preemption";

/// A pod of this class; `more` is merged into its spec.
pub(crate) fn ranked(pool: &Pool<'_>, name: &str, class: &str, memory: u64, more: Value) -> Value {
    let memory = memory.to_string();
    let mut pod = pool.pod(name, &[("gpu", "1"), ("gpumem", &memory)]);
    pod["metadata"]["labels"] = json!({"class": class, "pod": name});
    pod["spec"]["priorityClassName"] = json!(class);
    pod["spec"]["terminationGracePeriodSeconds"] = json!(0);
    if let Value::Object(more) = more {
        for (key, value) in more {
            pod["spec"][key] = value;
        }
    }
    pod
}

/// A pod that can only run on this node.
pub(crate) fn only_on(node: &str) -> Value {
    json!({"affinity": {"nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]},
        ]},
    }}})
}

/// Creates a pod, waits until it is bound, and lets it run.
pub(crate) async fn running(stack: &Stack, pool: &Pool<'_>, pod: Value) -> Result<()> {
    let name = pod["metadata"]["name"]
        .as_str()
        .context("a name")?
        .to_owned();
    stack.cluster.create_pod(pod).await?;
    pool.bound(&name).await?;
    let pods: Api<Pod> = Api::namespaced(stack.cluster.admin()?, pool.name);
    let status = json!({"status": {"phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}]}});
    let params = PatchParams::default();
    pods.patch_status(&name, &params, &Patch::Strategic(status))
        .await?;
    Ok(())
}

/// The names of the pool's pods that are there and not ending.
pub(crate) async fn there(stack: &Stack, pool: &Pool<'_>) -> Result<BTreeSet<String>> {
    let pods: Api<Pod> = Api::namespaced(stack.cluster.admin()?, pool.name);
    let pods = pods.list(&ListParams::default()).await?.items;
    let there = pods
        .into_iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_none());
    Ok(there.filter_map(|pod| pod.metadata.name).collect())
}

/// Which of these pods are gone or ending.
pub(crate) async fn ended(stack: &Stack, pool: &Pool<'_>, names: &[String]) -> Result<Vec<String>> {
    let there = there(stack, pool).await?;
    Ok(names
        .iter()
        .filter(|name| !there.contains(*name))
        .cloned()
        .collect())
}

/// Waits until the pod, bound, carries no plan any more.
pub(crate) async fn plan_is_gone(stack: &Stack, pool: &Pool<'_>, name: &str) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(stack.cluster.admin()?, pool.name);
    eventually(PATIENCE, "the plan to be taken away", || async {
        let pod = pods.get(name).await?;
        let annotations = pod.metadata.annotations.unwrap_or_default();
        until!(!annotations.contains_key(PREEMPTION), "{annotations:?}");
        Ok(Some(()))
    })
    .await
}
