//! What the API server refuses each account, and what only the scheduler and a node's agent may
//! write, by any route. The nodes are made up.

mod routes;
mod tenants;
mod tokens;

use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::Arc;

use aliquot_chart::{IMAGE, NAMESPACE, chart, rendered};
use aliquot_cluster::Cluster;
use aliquot_cluster::until;
use aliquot_cluster::wait::{PATIENCE, eventually};
use aliquot_scheduler::admission_policies;
use anyhow::{Result, ensure};
use kube::api::{Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::Request;
use serde_json::{Value, json};

use crate::{ChartCluster, helm_on};

const SCHEDULER: Who = Who::Account("aliquot-scheduler");
const AGENT: Who = Who::Account("aliquot-device-plugin");
const MONITOR: Who = Who::Account("aliquot-monitor");
const WEBHOOK: Who = Who::Account("aliquot-webhook");
/// It exists while the chart is removed.
const CLEANUP: Who = Who::Account("aliquot-cleanup");
/// The webhook's own configuration.
const HOOKS: &str =
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/aliquot-webhook";

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
    /// The kubelet of node `near`.
    Kubelet,
    /// HAMi's scheduler.
    Hami,
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
        installed.cleanup_account().await?;
        installed.policies_hold().await?;
        Ok(installed)
    }

    /// The account that the uninstallation creates, with its permissions.
    async fn cleanup_account(&self) -> Result<()> {
        for object in rendered(&[])? {
            let of_it = object.name() == "aliquot-cleanup" && object.kind() != "Job";
            if of_it && object.kind() != "NetworkPolicy" {
                let file = self.cluster.state_dir().join("cleanup.json");
                std::fs::write(&file, object.0.to_string())?;
                let apply = ["apply", "-f", &*file.to_string_lossy()];
                self.cluster.kubectl(&apply).await?.success()?;
            }
        }
        Ok(())
    }

    /// Waits until all policies are in effect.
    async fn policies_hold(&self) -> Result<()> {
        self.pod("asked").await?;
        let label = labels("own", &json!("1"));
        for (who, path, change) in [
            (
                Who::Admin,
                "pods/asked",
                annotation("aliquot.dev/allocation", &json!("own")),
            ),
            (
                Who::Admin,
                "nodes/near",
                annotation("aliquot.dev/inventory", &json!("own")),
            ),
            (SCHEDULER, "pods/asked", label.clone()),
            (AGENT, "nodes/near", label.clone()),
            (WEBHOOK, HOOKS, label),
        ] {
            eventually(PATIENCE, "the policies to hold", || async {
                let error = self.patched(who, path, &change, true).await?;
                until!(error.is_some(), "{who:?} may patch {path}");
                Ok(Some(()))
            })
            .await?;
        }
        Ok(())
    }

    async fn config(&self, who: Who) -> Result<PathBuf> {
        match who {
            Who::Admin | Who::Kubelet | Who::Hami => Ok(self.cluster.kubeconfig()),
            Who::Account(name) => {
                let node = (name == "aliquot-device-plugin").then_some("near");
                self.cluster.kubeconfig_for(NAMESPACE, name, node).await
            }
        }
    }

    async fn client(&self, who: Who) -> Result<kube::Client> {
        let config = Kubeconfig::read_from(self.config(who).await?)?;
        let options = KubeConfigOptions::default();
        let mut config = kube::Config::from_custom_kubeconfig(config, &options).await?;
        let as_who = match who {
            Who::Admin | Who::Account(_) => None,
            Who::Kubelet => Some(("system:node:near", "system:nodes")),
            Who::Hami => Some((
                "system:serviceaccount:kube-system:hami-scheduler",
                "system:masters",
            )),
        };
        if let Some((user, group)) = as_who {
            config.auth_info.impersonate = Some(user.to_owned());
            config.auth_info.impersonate_groups = Some(vec![group.to_owned()]);
        }
        Ok(kube::Client::try_from(config)?)
    }

    /// The API server's error for this patch of what a path names, such as `pods/a/status`; `None` if it
    /// was accepted.
    async fn patched(
        &self,
        who: Who,
        path: &str,
        change: &Value,
        dry_run: bool,
    ) -> Result<Option<String>> {
        let params = PatchParams {
            dry_run,
            ..PatchParams::default()
        };
        let path = full(path);
        let (folder, name) = path.rsplit_once('/').unwrap_or_default();
        let request = Request::new(folder).patch(name, &params, &Patch::Strategic(change))?;
        let done = self.client(who).await?.request::<Value>(request).await;
        Ok(done.err().map(|error| error.to_string()))
    }

    /// The same for an object that is created at a path.
    async fn posted(
        &self,
        who: Who,
        path: &str,
        object: &Value,
        dry_run: bool,
    ) -> Result<Option<String>> {
        let params = PostParams {
            dry_run,
            ..PostParams::default()
        };
        let request = Request::new(full(path)).create(&params, serde_json::to_vec(object)?)?;
        let done = self.client(who).await?.request::<Value>(request).await;
        Ok(done.err().map(|error| error.to_string()))
    }

    /// Checks that a patch is refused for this reason, or accepted where it is empty.
    async fn patch(&self, who: Who, path: &str, change: Value, reason: &str) -> Result<()> {
        let error = self.patched(who, path, &change, false).await?;
        check(&(who, path, change), error, reason)
    }

    /// The same for an object that is created.
    async fn post(&self, who: Who, path: &str, object: Value, reason: &str) -> Result<()> {
        let error = self.posted(who, path, &object, false).await?;
        check(&(who, path, object), error, reason)
    }

    async fn pod(&self, name: &str) -> Result<()> {
        self.cluster.create_pod(pod(name, &json!({}))).await?;
        Ok(())
    }
}

/// Pods are those of namespace `default`.
fn full(path: &str) -> String {
    match path.split('/').next() {
        Some("") => path.to_owned(),
        Some("nodes") => format!("/api/v1/{path}"),
        _ => format!("/api/v1/namespaces/default/{path}"),
    }
}

fn check(what: &dyn Debug, error: Option<String>, reason: &str) -> Result<()> {
    match error {
        None => ensure!(reason.is_empty(), "{what:?} was granted"),
        Some(error) => {
            let expected = !reason.is_empty() && error.contains(reason);
            ensure!(expected, "{what:?}: {error}");
        }
    }
    Ok(())
}

fn labels(key: &str, value: &Value) -> Value {
    json!({"metadata": {"labels": {key: value}}})
}

fn annotation(key: &str, value: &Value) -> Value {
    json!({"metadata": {"annotations": {key: value}}})
}

/// A pod that no scheduler handles.
fn pod(name: &str, annotations: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "annotations": annotations},
        "spec": {"schedulerName": "nobody", "containers": [{"name": "main", "image": "none"}]},
    })
}

/// A Binding to node `near`.
fn binding(name: &str, annotations: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Binding",
        "metadata": {"name": name, "namespace": "default", "annotations": annotations},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "near"},
    })
}

pub(crate) async fn refused(chart: Arc<ChartCluster>) -> Result<()> {
    let installed = Installed::on(chart.cluster.clone()).await?;
    routes::pods(&installed).await?;
    routes::nodes(&installed).await?;
    tokens::scheduler(&installed).await?;
    tokens::agent(&installed).await?;
    tokens::cleanup(&installed).await?;
    tokens::webhook(&installed).await?;
    tenants::pods(&installed).await?;
    changed_policies(&installed).await
}

/// The scheduler's account finds each policy and binding that is not as the chart wrote it.
async fn changed_policies(on: &Installed) -> Result<()> {
    let get = ["get", "configmap", "aliquot-admission-policies"];
    let json = "jsonpath={.data.policies\\.json}";
    let get = [&get[..], &["-n", NAMESPACE, "-o", json]].concat();
    let written = on.cluster.state_dir().join("policies.json");
    std::fs::write(&written, on.cluster.kubectl(&get).await?.success()?)?;
    let client = on.client(SCHEDULER).await?;
    let all = admission_policies::changed(&client, &written).await?;
    let is_same = all.len() == 16 && all.values().all(|is_changed| !is_changed);
    ensure!(is_same, "{all:?}");

    let (policy, binding) = (
        "validatingadmissionpolicy",
        "validatingadmissionpolicybinding",
    );
    let narrow = json!({"namespaceSelector": {"matchLabels": {"own": "1"}}});
    let never = json!([{"name": "never", "expression": "false"}]);
    for (kind, name, spec) in [
        (
            policy,
            "aliquot-allocations",
            json!({"failurePolicy": "Ignore"}),
        ),
        (
            policy,
            "aliquot-inventories",
            json!({"matchConstraints": narrow}),
        ),
        (
            policy,
            "aliquot-webhook-account",
            json!({"matchConditions": never}),
        ),
        (
            binding,
            "aliquot-namespaces",
            json!({"matchResources": narrow}),
        ),
        (
            binding,
            "aliquot-pods",
            json!({"validationActions": ["Audit"]}),
        ),
    ] {
        let change = json!({ "spec": spec }).to_string();
        let patch = ["patch", kind, name, "--type=merge", "-p", &change];
        on.cluster.kubectl(&patch).await?.success()?;
    }
    let delete = ["delete", binding, "aliquot-cleanup-account"];
    on.cluster.kubectl(&delete).await?.success()?;
    let all = admission_policies::changed(&client, &written).await?;
    let changed = all.iter().filter(|(_, is_changed)| **is_changed);
    let changed: Vec<&str> = changed.map(|(name, _)| name.as_str()).collect();
    let expected = [
        "ValidatingAdmissionPolicy/aliquot-allocations",
        "ValidatingAdmissionPolicy/aliquot-inventories",
        "ValidatingAdmissionPolicy/aliquot-webhook-account",
        "ValidatingAdmissionPolicyBinding/aliquot-cleanup-account",
        "ValidatingAdmissionPolicyBinding/aliquot-namespaces",
        "ValidatingAdmissionPolicyBinding/aliquot-pods",
    ];
    ensure!(changed == expected, "{changed:?}");
    Ok(())
}
