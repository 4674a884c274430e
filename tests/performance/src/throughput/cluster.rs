//! The control plane with its made-up nodes, and our scheduler with the rights of the chart and the
//! default flags.

use std::path::PathBuf;
use std::time::Duration;

use aliquot_cluster::wait::{OrNotYet as _, eventually};
use aliquot_cluster::{Cluster, Part};
use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use hyper::Request;
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::run::PLAIN;
use crate::{client, cluster};

const SCHEDULER: &str = "aliquot-scheduler";
const PATIENCE: Duration = Duration::from_mins(1);
/// Concurrent requests.
pub(super) const CONNECTIONS: usize = 16;

pub(super) struct BenchCluster {
    pub(super) cluster: Cluster,
    pub(super) client: Client,
    kubeconfig: PathBuf,
    program: PathBuf,
}

impl BenchCluster {
    pub(super) async fn start(nodes: usize) -> Result<Self> {
        let program = std::env::current_exe()?.with_file_name(SCHEDULER);
        ensure!(
            program.is_file(),
            "{} not found; run make bench",
            program.display()
        );
        let cluster = Cluster::control_plane()
            .extender()
            .apiserver_arg("--max-requests-inflight=4000")
            .apiserver_arg("--max-mutating-requests-inflight=2000")
            .scheduler_arg("--feature-gates=OpportunisticBatching=false")
            .scheduler_rate(5_000, 10_000);
        let cluster = Box::pin(cluster.start()).await?;
        cluster.install_rights().await?;
        let kubeconfig = cluster
            .kubeconfig_for("aliquot-system", SCHEDULER, None)
            .await?;
        for workload in super::run::WORKLOADS {
            cluster.namespace(workload.name()).await?;
        }
        let client = cluster.admin()?;
        stream::iter(0..nodes)
            .map(|number| create_node(&client, number))
            .buffer_unordered(CONNECTIONS)
            .try_for_each(|()| async { Ok(()) })
            .await?;
        Ok(Self {
            cluster,
            client,
            kubeconfig,
            program,
        })
    }

    /// Starts our scheduler and waits until it is ready.
    pub(super) async fn start_scheduler(&self) -> Result<Part> {
        let listen = self.cluster.extender_address().to_string();
        let kubeconfig = self.kubeconfig.to_string_lossy();
        let args = ["--kubeconfig", &*kubeconfig, "--listen", &listen];
        let part = self
            .cluster
            .start_part(SCHEDULER, &self.program, &args, &[])?;
        eventually(PATIENCE, "aliquot-scheduler to be ready", || async {
            part.check()?;
            self.get("readyz").await.or_not_yet().map(Some)
        })
        .await?;
        Ok(part)
    }

    /// Gets a page of our scheduler.
    pub(super) async fn get(&self, path: &str) -> Result<String> {
        let page = format!("http://{}/{path}", self.cluster.extender_address());
        let text = client::get(&client::http(), &page).await?;
        Ok(String::from_utf8(text.to_vec())?)
    }

    pub(super) async fn stop(self) -> Result<()> {
        self.cluster.stop().await
    }
}

/// What a node of the cluster can take.
pub(super) fn capacity() -> Value {
    json!({"cpu": "128", "memory": "2Ti", "pods": "250",
        "nvidia.com/gpu": "80", PLAIN: "80"})
}

async fn create_node(client: &Client, number: usize) -> Result<()> {
    let mut node: Node = cluster::node(number)?;
    let capacity = capacity();
    node.status = Some(serde_json::from_value(json!({
        "capacity": capacity,
        "allocatable": capacity,
        "conditions": [{"type": "Ready", "status": "True", "reason": "MadeUp"}],
    }))?);
    let name = cluster::name(number);
    node.metadata.labels = Some([("kubernetes.io/hostname".to_owned(), name)].into());
    post(client, "/api/v1/nodes", &serde_json::to_value(node)?).await
}

/// Creates an object; the response is not read.
pub(super) async fn post(client: &Client, path: &str, object: &Value) -> Result<()> {
    let request = Request::post(path)
        .header("content-type", "application/json")
        .body(serde_json::to_vec(object)?)?;
    let answer = client.request::<IgnoredAny>(request).await;
    answer.map(drop).with_context(|| format!("POST {path}"))
}
