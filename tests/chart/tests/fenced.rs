//! The chart on a real API server: what each account may not do, and what only the scheduler and a
//! node's agent may write, by any route.
#![allow(clippy::unwrap_used, reason = "the helpers of tests fail the test")]

#[path = "fenced/accounts.rs"]
mod accounts;
#[path = "fenced/routes.rs"]
mod routes;
#[path = "fenced/tenants.rs"]
mod tenants;
#[path = "fenced/tokens.rs"]
mod tokens;
#[path = "fenced/verbs.rs"]
mod verbs;

use std::path::PathBuf;

use aliquot_chart::{NAMESPACE, chart, helm};
use aliquot_cluster::Cluster;
use aliquot_cluster::wait::{PATIENCE, eventually};
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};

/// A cluster with the chart on it: two nodes, no kubelet, so that none of its pods runs.
struct Installed {
    cluster: Cluster,
}

/// The account of a request.
#[derive(Clone, Copy, Debug)]
enum Who {
    /// All permissions.
    Admin,
    /// An account of Aliquot; for the agents, the one on node `near`.
    Account(&'static str),
    /// The kubelet of a node.
    Kubelet(&'static str),
}

impl Installed {
    async fn start() -> Result<Self> {
        let cluster = Box::pin(Cluster::control_plane().start()).await?;
        let installed = Self { cluster };
        let args = [
            "install",
            "aliquot",
            &chart(),
            "-n",
            NAMESPACE,
            "--create-namespace",
        ];
        installed.helm(&args)?;
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

    fn helm(&self, arguments: &[&str]) -> Result<String> {
        let config = self.cluster.kubeconfig().to_string_lossy().into_owned();
        let mut all = arguments.to_vec();
        all.extend(["--kubeconfig", &config]);
        helm(&all)?.success()
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
            let asked = || async { self.ask(Who::Admin, &request).await };
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

#[tokio::test]
async fn api_server_refuses_forbidden_verbs_and_annotations() {
    let installed = Installed::start().await.unwrap();
    routes::allocations(&installed).await.unwrap();
    routes::inventories(&installed).await.unwrap();
    accounts::leaving(&installed).await.unwrap();
    accounts::allocations(&installed).await.unwrap();
    accounts::inventories(&installed).await.unwrap();
    verbs::refused(&installed).await.unwrap();
    tokens::policies_hold(&installed).await.unwrap();
    tokens::scheduler(&installed).await.unwrap();
    tokens::agent_writes(&installed).await.unwrap();
    tokens::agent(&installed).await.unwrap();
    tokens::leave(&installed).await.unwrap();
    tokens::webhook(&installed).await.unwrap();
    tenants::hami_annotations(&installed).await.unwrap();
    tenants::pods(&installed).await.unwrap();
    installed.cluster.stop().await.unwrap();
}
