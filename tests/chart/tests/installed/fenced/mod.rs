//! What the API server refuses each account, and what only the scheduler and a node's agent may
//! write, by any route. The nodes are made up.

mod accounts;
mod routes;
mod tenants;
mod tokens;
mod verbs;

use std::path::PathBuf;
use std::sync::Arc;

use aliquot_chart::{IMAGE, NAMESPACE, chart};
use aliquot_cluster::Cluster;
use aliquot_cluster::wait::{PATIENCE, eventually};
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};

use crate::{ChartCluster, helm_on};

/// A cluster with the chart on it: two nodes, no kubelet, so that none of its pods runs.
pub(crate) struct Installed {
    cluster: Arc<Cluster>,
}

/// The account of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Who {
    /// All permissions.
    Admin,
    /// An account of Aliquot; for the agents, the one on node `near`.
    Account(&'static str),
    /// The kubelet of a node.
    Kubelet(&'static str),
}

impl Installed {
    async fn on(cluster: Arc<Cluster>) -> Result<Self> {
        let install = ["install", "aliquot", &chart(), IMAGE, "--create-namespace"];
        helm_on(&cluster, &install)?.success()?;
        let installed = Self { cluster };
        // No webhook runs, and the API server would refuse what it cannot review.
        let never = json!({"webhooks": [{
            "name": "pods.aliquot.dev",
            "matchConditions": [{"name": "never", "expression": "false"}],
        }]})
        .to_string();
        let configuration = "mutatingwebhookconfiguration/aliquot-webhook";
        let patch = ["patch", configuration, "-p", &never];
        installed.cluster.kubectl(&patch).await?.success()?;
        for node in ["near", "far"] {
            installed.cluster.fake_node(node, &[], &[]).await?;
        }
        installed.fences_stand().await?;
        Ok(installed)
    }

    async fn config(&self, who: Who) -> Result<PathBuf> {
        match who {
            Who::Admin | Who::Kubelet(_) => Ok(self.cluster.kubeconfig()),
            Who::Account(name) => {
                let node = (name == "aliquot-device-plugin").then_some("near");
                self.cluster.kubeconfig_for(NAMESPACE, name, node).await
            }
        }
    }

    /// A client that sends the request directly (kubectl first reads what it changes, which some accounts
    /// may not).
    async fn client(&self, who: Who) -> Result<kube::Client> {
        let config = Kubeconfig::read_from(self.config(who).await?)?;
        let options = KubeConfigOptions::default();
        let mut config = kube::Config::from_custom_kubeconfig(config, &options).await?;
        if let Who::Kubelet(node) = who {
            config.auth_info.impersonate = Some(format!("system:node:{node}"));
            config.auth_info.impersonate_groups = Some(vec!["system:nodes".to_owned()]);
        }
        Ok(kube::Client::try_from(config)?)
    }

    /// kubectl's error for this request; `None` if it was accepted.
    async fn ask(&self, who: Who, request: &[&str]) -> Result<Option<String>> {
        let config = format!("--kubeconfig={}", self.config(who).await?.display());
        let mut all = vec![config.as_str()];
        all.extend_from_slice(request);
        let output = self.cluster.kubectl(&all).await?;
        Ok((output.code != Some(0)).then_some(output.stderr))
    }

    async fn granted(&self, who: Who, request: &[&str]) -> Result<()> {
        let refused = self.ask(who, request).await?;
        ensure!(refused.is_none(), "{who:?} {request:?}: {refused:?}");
        Ok(())
    }

    /// Checks that the request is refused for this reason.
    async fn refused(&self, who: Who, request: &[&str], reason: &str) -> Result<()> {
        let refusal = self.ask(who, request).await?;
        let refusal = refusal.with_context(|| format!("{who:?} {request:?} was granted"))?;
        ensure!(refusal.contains(reason), "{who:?} {request:?}: {refusal}");
        Ok(())
    }

    /// Waits until both policies are in effect.
    async fn fences_stand(&self) -> Result<()> {
        self.pod("asked").await?;
        for (object, key) in [("pod/asked", "allocation"), ("node/near", "inventory")] {
            let own = format!("aliquot.dev/{key}=own");
            let request = ["annotate", "--dry-run=server", object, &own];
            let asked = || async { Ok(self.ask(Who::Admin, &request).await?) };
            eventually(PATIENCE, "the policies to hold", asked).await?;
        }
        Ok(())
    }

    /// The API server's error for this change of a node's status.
    async fn status(&self, who: Who, node: &str, change: &Value) -> Result<Option<String>> {
        let nodes: Api<Node> = Api::all(self.client(who).await?);
        let change = Patch::Merge(change);
        let done = nodes
            .patch_status(node, &PatchParams::default(), &change)
            .await;
        Ok(done.err().map(|error| error.to_string()))
    }

    /// The API server's error for this change of a pod through a subresource, which not every kubectl
    /// knows.
    async fn subresource(
        &self,
        pod: &str,
        name: &str,
        change: &Value,
        dry_run: bool,
    ) -> Result<Option<String>> {
        let pods: Api<Pod> = Api::default_namespaced(self.client(Who::Admin).await?);
        let change = Patch::Strategic(change);
        let params = PatchParams {
            dry_run,
            ..PatchParams::default()
        };
        let done = pods.patch_subresource(name, pod, &params, &change).await;
        Ok(done.err().map(|error| error.to_string()))
    }

    /// POST of an object to a path.
    fn posted(&self, path: &str, object: &Value) -> Result<Vec<String>> {
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let file = self.cluster.state_dir().join(format!("post-{number}.json"));
        std::fs::write(&file, object.to_string()).context("write an object")?;
        let file = file.to_string_lossy().into_owned();
        Ok(["create", "--raw", path, "-f", &file]
            .map(str::to_owned)
            .into())
    }

    async fn pod(&self, name: &str) -> Result<()> {
        self.cluster.create_pod(pod(name, &json!({}))).await?;
        Ok(())
    }
}

fn pod(name: &str, annotations: &Value) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "default", "annotations": annotations},
        // No scheduler handles it.
        "spec": {"schedulerName": "nobody", "containers": [{"name": "main", "image": "none"}]},
    })
}

pub(crate) async fn refused(chart: Arc<ChartCluster>) -> Result<()> {
    let installed = Installed::on(chart.cluster.clone()).await?;
    routes::allocations(&installed).await?;
    routes::inventories(&installed).await?;
    accounts::leaving(&installed).await?;
    accounts::allocations(&installed).await?;
    accounts::inventories(&installed).await?;
    verbs::refused(&installed).await?;
    tokens::policies_hold(&installed).await?;
    tokens::scheduler(&installed).await?;
    tokens::agent_writes(&installed).await?;
    tokens::agent(&installed).await?;
    tokens::leave(&installed).await?;
    tokens::webhook(&installed).await?;
    tenants::hami_annotations(&installed).await?;
    tenants::pods(&installed).await
}
