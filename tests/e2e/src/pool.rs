//! Fake nodes with GPUs, and the pods of one scenario on them.
//!
//! A pool is a namespace and the nodes with its name as the label `pool`; its pods select them, so
//! that scenarios do not meet. The inventories are those that a node agent could publish.

use std::path::PathBuf;

use aliquot_cluster::until;
use aliquot_cluster::wait::{PATIENCE, eventually};
use aliquot_core::Mib;
use aliquot_core::inventory::{Gpu, INVENTORY, Inventory};
use anyhow::Result;
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams,
};
use serde_json::{Value, json};

use crate::http;
use crate::pods::simple;
use crate::stack::{Kind, Stack};

/// Memory of every GPU: an A100 80GB.
pub const GPU_MEMORY: u64 = 81_920;

/// What a node of a pool has.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Number of GPUs.
    pub gpus: u32,
    /// `deviceSplitCount`.
    pub replicas: u32,
}

impl Shape {
    /// So many GPUs with ten replicas each.
    pub const fn of_gpus(count: u32) -> Self {
        Self {
            gpus: count,
            replicas: 10,
        }
    }
}

/// A namespace and its nodes.
pub struct Pool<'a> {
    stack: &'a Stack,
    /// Of the namespace, and the value of the nodes' label `pool`.
    pub name: &'static str,
    nodes: Vec<String>,
}

impl<'a> Pool<'a> {
    /// Makes the namespace and the nodes, and waits until the scheduler knows them.
    pub async fn open(
        stack: &'a Stack,
        name: &'static str,
        nodes: &[(String, Shape)],
    ) -> Result<Self> {
        stack.cluster.namespace(name).await?;
        try_join_all(
            nodes
                .iter()
                .map(|(node, shape)| stack.gpu_node(name, node, *shape)),
        )
        .await?;
        let nodes: Vec<String> = nodes.iter().map(|(node, _)| node.clone()).collect();
        stack.wait_nodes_in_ledger(&nodes, true).await?;
        Ok(Self { stack, name, nodes })
    }

    /// A pod of the pool with one container `main` and these limits.
    pub fn pod(&self, name: &str, limits: &[(&str, &str)]) -> Value {
        let mut pod = simple(self.name, name, limits);
        pod["spec"]["nodeSelector"] = json!({"pool": self.name});
        pod
    }

    /// Creates such a pod.
    pub async fn create(&self, name: &str, limits: &[(&str, &str)]) -> Result<Pod> {
        self.stack.cluster.create_pod(self.pod(name, limits)).await
    }

    /// Waits until the pod is bound.
    pub async fn bound(&self, name: &str) -> Result<Pod> {
        let what = format!("pod {}/{name} to be bound", self.name);
        let is_bound = |pod: &Pod| Ok(node_of(pod).is_some());
        self.stack
            .cluster
            .wait_pod(self.name, name, &what, is_bound)
            .await
    }

    /// Waits until an event about the pod contains `text`, and returns all of it.
    pub async fn event(&self, name: &str, text: &str) -> Result<String> {
        self.stack.wait_event(self.name, name, &[text]).await
    }

    /// Deletes the pods and the nodes, and waits until the ledger are without them.
    pub async fn close(self) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.stack.cluster.admin()?, self.name);
        let at_once = DeleteParams::default().grace_period(0);
        pods.delete_collection(&at_once, &ListParams::default())
            .await?;
        let what = format!("the pods of {} to be gone", self.name);
        eventually(PATIENCE, &what, || async {
            let left = pods.list_metadata(&ListParams::default()).await?.items;
            until!(left.is_empty(), "{} left", left.len());
            Ok(Some(()))
        })
        .await?;
        for node in &self.nodes {
            self.stack.delete_node(node).await?;
        }
        self.stack.wait_nodes_in_ledger(&self.nodes, false).await
    }
}

/// Where the pod is bound.
pub fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

impl Stack {
    /// A fake node of this pool, with an inventory and its replicas.
    pub async fn gpu_node(&self, pool: &str, name: &str, shape: Shape) -> Result<()> {
        let replicas = (shape.gpus * shape.replicas).to_string();
        let allocatable = [("nvidia.com/gpu", replicas.as_str())];
        let labels = [("pool", pool)];
        self.cluster.fake_node(name, &labels, &allocatable).await?;
        self.publish_inventory(name, shape).await
    }

    /// Writes what the agent of this node would publish.
    pub async fn publish_inventory(&self, name: &str, shape: Shape) -> Result<()> {
        let text = inventory(name, shape).encode()?;
        let nodes: Api<Node> = Api::all(self.cluster.admin()?);
        let patch = json!({"metadata": {"annotations": {INVENTORY: text}}});
        nodes
            .patch_metadata(name, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        Ok(())
    }

    /// Deletes a fake node.
    pub async fn delete_node(&self, name: &str) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.cluster.admin()?);
        nodes.delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Waits until the scheduler knows all of these nodes, or none of them.
    async fn wait_nodes_in_ledger(&self, nodes: &[String], known: bool) -> Result<()> {
        let what = format!("the scheduler's ledger with {nodes:?}: {known}");
        eventually(PATIENCE, &what, || async {
            let text = http::get(self.address(Kind::Scheduler), "/ledger").await?;
            let stated: Value = serde_json::from_str(&text)?;
            let differs = |node: &&String| stated["nodes"][node.as_str()].is_object() != known;
            let other = nodes.iter().find(differs);
            until!(other.is_none(), "{other:?} is not as expected");
            Ok(Some(()))
        })
        .await
    }

    /// Writes a file that goes with the cluster.
    pub fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        std::fs::create_dir_all(self.files())?;
        let path = self.files().join(name);
        std::fs::write(&path, text)?;
        Ok(path)
    }

    /// Creates a pod as a dry run; as it would be stored.
    pub async fn trial(&self, pod: Value) -> Result<Pod> {
        let pod: Pod = serde_json::from_value(pod)?;
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
        let pods: Api<Pod> = Api::namespaced(self.cluster.admin()?, namespace);
        let trial = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        Ok(pods.create(&trial, &pod).await?)
    }

    /// Creates a pod exactly as written (numbers stay numbers). Returns the API server's message if
    /// it refuses the pod, `None` if it creates it.
    pub async fn refusal(&self, pod: Value) -> Result<Option<String>> {
        let namespace = pod["metadata"]["namespace"].as_str().unwrap_or("default");
        let pods: Api<DynamicObject> = Api::namespaced_with(
            self.cluster.admin()?,
            namespace,
            &ApiResource::erase::<Pod>(&()),
        );
        let pod = serde_json::from_value(pod.clone())?;
        match pods.create(&PostParams::default(), &pod).await {
            Ok(_) => Ok(None),
            Err(kube::Error::Api(status)) => Ok(Some(status.message)),
            Err(error) => Err(error.into()),
        }
    }
}

/// What an agent would publish for this many A100.
fn inventory(node: &str, shape: Shape) -> Inventory {
    let gpu = |index| {
        let uuid = format!("GPU-{node}-{index}").into();
        let model = "NVIDIA A100-SXM4-80GB".to_owned();
        Gpu {
            replicas: shape.replicas,
            numa: Some(0),
            ..Gpu::vgpu(uuid, index, model, Mib(GPU_MEMORY))
        }
    };
    Inventory {
        driver: "580.82".to_owned(),
        topology_policy: "none".to_owned(),
        ..Inventory::new((0..shape.gpus).map(gpu).collect())
    }
}
