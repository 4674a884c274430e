//! Fake nodes, and pods run on them by hand (there is no kubelet).

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Map, Value, json};

use crate::cluster::Cluster;

impl Cluster {
    /// Makes a Node that is ready, with 64 CPUs, 256 GiB and capacity for 250 pods;
    /// `allocatable` adds to that or overrides it.
    ///
    /// # Errors
    /// The API server refuses it.
    pub async fn fake_node(
        &self,
        name: &str,
        labels: &[(&str, &str)],
        allocatable: &[(&str, &str)],
    ) -> Result<Node> {
        let nodes: Api<Node> = Api::all(self.admin()?);
        let labels: BTreeMap<&str, &str> = labels.iter().copied().collect();
        let node = serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}}))?;
        nodes
            .create(&PostParams::default(), &node)
            .await
            .with_context(|| format!("create node {name}"))?;
        let mut capacity: Map<String, Value> = Map::new();
        for (resource, amount) in [("cpu", "64"), ("memory", "256Gi"), ("pods", "250")] {
            capacity.insert(resource.into(), amount.into());
        }
        for (resource, amount) in allocatable {
            capacity.insert((*resource).into(), (*amount).into());
        }
        let status = json!({"status": {
            "capacity": capacity,
            "allocatable": capacity,
            "conditions": [{"type": "Ready", "status": "True", "reason": "MadeUp"}],
        }});
        nodes
            .patch_status(name, &PatchParams::default(), &Patch::Strategic(status))
            .await
            .with_context(|| format!("set the status of node {name}"))
    }

    /// Sets a pod's phase, as the kubelet of a fake node would.
    ///
    /// # Errors
    /// The API server refuses it.
    pub async fn set_phase(&self, namespace: &str, name: &str, phase: &str) -> Result<Pod> {
        let pods: Api<Pod> = Api::namespaced(self.admin()?, namespace);
        let status = json!({"status": {"phase": phase}});
        pods.patch_status(name, &PatchParams::default(), &Patch::Strategic(status))
            .await
            .with_context(|| format!("set the phase of pod {namespace}/{name}"))
    }
}
