//! The nodes that Karpenter adds, and what stands in for their agents and kubelets.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use aliquot_cluster::until;
use aliquot_cluster::wait::{PATIENCE, eventually};
use aliquot_core::inventory::INVENTORY;
use aliquot_e2e::pods::simple;
use aliquot_e2e::pool::{GPU_MEMORY, Shape, node_of};
use aliquot_e2e::stack::{NAMESPACE, Stack};
use anyhow::Result;
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// GPUs of a node, and the replicas of each.
pub(crate) const SHAPE: Shape = Shape::of_gpus(4);
/// How often the stand-ins act.
const INTERVAL: Duration = Duration::from_millis(200);
const POOL: &str = "gpus";
const OF_POOL: &str = "karpenter.sh/nodepool=gpus";

/// Karpenter's only instance type.
pub(crate) fn instance_types() -> Value {
    let requirement =
        |key: &str, value: &str| json!({"key": key, "operator": "In", "values": [value]});
    json!([{
        "name": "gpu-4",
        "architecture": "amd64",
        "operatingSystems": ["linux"],
        "resources": {"cpu": "64", "memory": "512Gi", "pods": "110", "ephemeral-storage": "100Gi",
            "nvidia.com/gpu": SHAPE.gpus.to_string()},
        "offerings": [{"Price": 1.0, "Available": true, "Requirements": [
            requirement("karpenter.sh/capacity-type", "on-demand"),
            requirement("topology.kubernetes.io/zone", "test-zone-a"),
        ]}],
    }])
}

/// The same for the scheduler, as `scheduler.autoscaler.nodeTypes` has it.
pub(crate) fn node_types() -> Value {
    json!([{"name": "gpu-4", "gpus": SHAPE.gpus, "model": "NVIDIA A100-SXM4-80GB",
        "gpuMemory": GPU_MEMORY, "replicas": SHAPE.replicas, "cpu": "63", "memory": "500Gi",
        "nodeSelector": {"karpenter.sh/nodepool": POOL}}])
}

/// Karpenter's node pool, which removes empty and underutilized nodes.
pub(crate) fn pool() -> Value {
    json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass",
            "metadata": {"name": "default"}},
        {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": POOL}, "spec": {
            "template": {"spec": {
                "requirements": [{"key": "karpenter.sh/capacity-type", "operator": "In",
                    "values": ["on-demand"]}],
                "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass",
                    "name": "default"},
                "expireAfter": "Never",
            }},
            "disruption": {"consolidationPolicy": "WhenEmptyOrUnderutilized",
                "consolidateAfter": "20s", "budgets": [{"nodes": "100%"}]},
        }},
    ]})
}

/// Karpenter's nodes and the shares of one scenario. While it lives, each new node gets what an
/// agent publishes, and each bound pod runs.
pub(crate) struct Fleet {
    pub(crate) stack: Arc<Stack>,
    namespace: &'static str,
    /// Every node of the pool that there ever was.
    pub(crate) added: Arc<Mutex<BTreeSet<String>>>,
    tending: JoinHandle<()>,
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.tending.abort();
    }
}

impl Fleet {
    /// Without any node of the pool, with a namespace of this name.
    pub(crate) async fn open(stack: Arc<Stack>, namespace: &'static str) -> Result<Self> {
        stack.cluster.namespace(namespace).await?;
        let added = Arc::new(Mutex::default());
        let tended = (stack.clone(), added.clone());
        let tending = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(INTERVAL);
            loop {
                ticks.tick().await;
                // What is refused, because the object has just changed or gone, is tried again.
                let _refused = tend(&tended.0, namespace, &tended.1).await;
            }
        });
        let fleet = Self {
            stack,
            namespace,
            added,
            tending,
        };
        fleet.wait_for_nodes(0).await?;
        fleet.added.lock().clear();
        Ok(fleet)
    }

    fn pods(&self) -> Result<Api<Pod>> {
        Ok(Api::namespaced(self.stack.cluster.admin()?, self.namespace))
    }

    /// Creates a share of this many MiB for each number, `name-0` and so on.
    pub(crate) async fn create(&self, name: &str, memory: &[u64]) -> Result<()> {
        let all = memory
            .iter()
            .enumerate()
            .map(|(number, memory)| async move {
                let memory = memory.to_string();
                let limits = [("gpu", "1"), ("gpumem", memory.as_str())];
                let pod = simple(self.namespace, &format!("{name}-{number}"), &limits);
                self.stack.cluster.create_pod(pod).await
            });
        try_join_all(all).await?;
        Ok(())
    }

    /// Waits until all of this many shares are bound.
    pub(crate) async fn wait_bound(&self, count: usize) -> Result<Vec<Pod>> {
        let pods = self.pods()?;
        eventually(PATIENCE, "every share to be bound", || async {
            let all = pods.list(&ListParams::default()).await?.items;
            let bound = all.iter().filter(|pod| node_of(pod).is_some()).count();
            until!(bound == count, "{bound} of {count}");
            Ok(Some(all))
        })
        .await
    }

    /// Waits until no placeholder is left: nothing more will be added.
    pub(crate) async fn wait_satisfied(&self) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.stack.cluster.admin()?, NAMESPACE);
        let params = ListParams::default().labels("aliquot.dev/placeholder");
        eventually(PATIENCE, "no placeholder", || async {
            let left = pods.list_metadata(&params).await?.items.len();
            until!(left == 0, "{left} placeholders");
            Ok(Some(()))
        })
        .await
    }

    pub(crate) async fn nodes(&self) -> Result<Vec<Node>> {
        let nodes: Api<Node> = Api::all(self.stack.cluster.admin()?);
        Ok(nodes
            .list(&ListParams::default().labels(OF_POOL))
            .await?
            .items)
    }

    /// Waits until the pool has this many nodes.
    pub(crate) async fn wait_for_nodes(&self, count: usize) -> Result<()> {
        let what = format!("{count} nodes of the pool");
        eventually(PATIENCE, &what, || async {
            let found = self.nodes().await?.len();
            until!(found == count, "{found}");
            Ok(Some(()))
        })
        .await
    }

    /// How many nodes Karpenter added since the scenario began.
    pub(crate) fn added_count(&self) -> usize {
        self.added.lock().len()
    }

    /// Deletes these shares at once; all of them without a selector.
    pub(crate) async fn delete(&self, pods: impl IntoIterator<Item = Pod>) -> Result<()> {
        let (api, at_once) = (self.pods()?, DeleteParams::default().grace_period(0));
        for name in pods.into_iter().filter_map(|pod| pod.metadata.name) {
            api.delete(&name, &at_once).await?;
        }
        Ok(())
    }

    pub(crate) async fn shares(&self) -> Result<Vec<Pod>> {
        Ok(self.pods()?.list(&ListParams::default()).await?.items)
    }

    /// Deletes every share, and waits until every node has left.
    pub(crate) async fn close(self) -> Result<()> {
        self.delete(self.shares().await?).await?;
        self.wait_for_nodes(0).await
    }
}

/// Does what the agent and the kubelet of each node would do next.
async fn tend(stack: &Stack, namespace: &str, added: &Mutex<BTreeSet<String>>) -> Result<()> {
    let client = stack.cluster.admin()?;
    let nodes: Api<Node> = Api::all(client.clone());
    for node in nodes.list(&ListParams::default().labels(OF_POOL)).await? {
        let Some(name) = node.metadata.name else {
            continue;
        };
        added.lock().insert(name.clone());
        let annotations = node.metadata.annotations.unwrap_or_default();
        if annotations.contains_key(INVENTORY) || node.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let replicas = (SHAPE.gpus * SHAPE.replicas).to_string();
        let status = json!({"status": {
            "phase": "Running",
            "capacity": {"nvidia.com/gpu": replicas},
            "allocatable": {"nvidia.com/gpu": replicas},
            "conditions": [{"type": "Ready", "status": "True", "reason": "MadeUp"}],
        }});
        nodes
            .patch_status(&name, &PatchParams::default(), &Patch::Strategic(status))
            .await?;
        stack.publish_inventory(&name, SHAPE).await?;
    }
    let pods: Api<Pod> = Api::namespaced(client, namespace);
    let pending = ListParams::default().fields("status.phase=Pending");
    for pod in pods.list(&pending).await? {
        if let (Some(_), Some(name)) = (node_of(&pod), &pod.metadata.name) {
            stack.cluster.set_phase(namespace, name, "Running").await?;
        }
    }
    Ok(())
}
