//! What creates pods: a Deployment, a `DaemonSet` or a Job of one pod.

use std::time::Duration;

use aliquot_cluster::until;
use aliquot_cluster::wait::eventually;
use aliquot_e2e::pods::WAIT;
use aliquot_e2e::stack::Stack;
use anyhow::{Context as _, Result};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_mins(3);

/// A controller of pods with these limits.
pub(crate) fn workload(namespace: &str, kind: &str, name: &str, limits: &Value) -> Value {
    let labels = json!({"app": name});
    let container = json!({
        "name": "main", "image": "localhost/busybox:1", "command": ["sh", "-c", WAIT],
        "resources": {"limits": limits},
    });
    let mut pod = json!({"metadata": {"labels": labels},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]}});
    let metadata = json!({"name": name, "namespace": namespace});
    if kind == "Job" {
        pod["spec"]["containers"][0]["command"] = json!(["true"]);
        pod["spec"]["restartPolicy"] = json!("Never");
        return json!({"apiVersion": "batch/v1", "kind": kind, "metadata": metadata,
            "spec": {"template": pod}});
    }
    json!({"apiVersion": "apps/v1", "kind": kind, "metadata": metadata,
        "spec": {"selector": {"matchLabels": labels}, "template": pod}})
}

/// Applies these objects at once, from a file of this name.
pub(crate) async fn applied(stack: &Stack, name: &str, objects: &[Value]) -> Result<()> {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    let path = stack.write(&format!("{name}.json"), &list.to_string())?;
    let apply = ["apply", "-f", &*path.to_string_lossy()];
    stack.cluster.kubectl(&apply).await?.success().map(drop)
}

/// What `kubectl get` finds in the namespace.
pub(crate) async fn get(stack: &Stack, namespace: &str, what: &str) -> Result<Value> {
    let args = ["get", what, "-n", namespace, "-o", "json"];
    let text = stack.cluster.kubectl(&args).await?.success()?;
    Ok(serde_json::from_str(&text)?)
}

/// Removes all of them, and waits until their pods are gone.
pub(crate) async fn cleared(stack: &Stack, namespace: &str) -> Result<()> {
    let kinds = "deployment,daemonset,job,pod";
    let delete = ["delete", kinds, "--all", "-n", namespace, "--wait"];
    stack.cluster.kubectl(&delete).await?.success()?;
    eventually(PATIENCE, "all pods to be gone", || async {
        let left = get(stack, namespace, "pods").await?;
        let left = left["items"].as_array().context("a list")?.len();
        until!(left == 0, "{left} pods");
        Ok(Some(()))
    })
    .await
}
