//! Every route by which an annotation of ours could be written, for those who may not
//! write it; the administrator is the one with the most rights, and may not either.

use anyhow::{Result, ensure};
use serde_json::json;

use crate::{Installed, Who, pod};

const SCHEDULER: Who = Who::Account("aliquot-scheduler");
const AGENT: Who = Who::Account("aliquot-device-plugin");
const MESSAGE: &str = "is written by aliquot-scheduler alone";

fn words(request: &[String]) -> Vec<&str> {
    request.iter().map(String::as_str).collect()
}

/// A pod's allocation and its plan of preemption.
pub(crate) async fn allocations(on: &Installed) -> Result<()> {
    on.pod("given").await?;
    on.pod("bare").await?;
    for key in ["aliquot.dev/allocation", "aliquot.dev/preemption"] {
        let own = format!("{key}=own");
        // With the pod.
        let copied = pod("copied", &json!({key: "{}"}));
        let path = "/api/v1/namespaces/default/pods";
        let request = on.posted(path, &copied)?;
        on.refused(Who::Admin, &words(&request), MESSAGE).await?;
        // Set, changed, removed; the scheduler may.
        on.refused(Who::Admin, &["annotate", "pod", "given", &own], MESSAGE)
            .await?;
        let value = format!("{key}=the scheduler's");
        on.granted(SCHEDULER, &["annotate", "pod", "given", &value])
            .await?;
        let changed = ["annotate", "--overwrite", "pod", "given", &own];
        on.refused(Who::Admin, &changed, MESSAGE).await?;
        let removed = ["annotate", "pod", "given", &format!("{key}-")];
        on.refused(Who::Admin, &removed, MESSAGE).await?;
        // By the pod's status.
        for value in [json!("own"), json!(null)] {
            let change = json!({"metadata": {"annotations": {key: value}}}).to_string();
            let status = [
                "patch",
                "pod",
                "given",
                "--subresource=status",
                "-p",
                &change,
            ];
            on.refused(Who::Admin, &status, MESSAGE).await?;
        }
        // With either kind of Binding.
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": {"name": "bare", "namespace": "default", "annotations": {key: "{}"}},
            "target": {"apiVersion": "v1", "kind": "Node", "name": "near"},
        });
        for path in ["pods/bare/binding", "bindings"] {
            let path = format!("/api/v1/namespaces/default/{path}");
            let request = on.posted(&path, &binding)?;
            on.refused(Who::Admin, &words(&request), MESSAGE).await?;
        }
    }
    quiet_routes(on).await?;
    devices(on).await?;
    // What is not ours is nobody's concern, on the same objects and the same routes.
    on.granted(Who::Admin, &["annotate", "pod", "given", "mine=1"])
        .await?;
    let change = json!({"status": {"message": "x"}}).to_string();
    let status = [
        "patch",
        "pod",
        "given",
        "--subresource=status",
        "-p",
        &change,
    ];
    on.granted(Who::Admin, &status).await?;
    let plain = |name: &str| {
        json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": {"name": name, "namespace": "default"},
            "target": {"apiVersion": "v1", "kind": "Node", "name": "near"},
        })
    };
    let path = "/api/v1/namespaces/default/pods/bare/binding";
    let request = on.posted(path, &plain("bare"))?;
    on.granted(Who::Admin, &words(&request)).await?;
    // The scheduler's own Binding carries it.
    on.pod("bound").await?;
    let mut binding = plain("bound");
    binding["metadata"]["annotations"] = json!({"aliquot.dev/allocation": "{}"});
    let path = "/api/v1/namespaces/default/pods/bound/binding";
    let request = on.posted(path, &binding)?;
    on.granted(SCHEDULER, &words(&request)).await
}

/// CDI devices in an annotation, which the webhook judges on new pods, came later.
async fn devices(on: &Installed) -> Result<()> {
    let message = "not written on a pod that is there";
    for key in ["cdi.k8s.io/x", "nvidia.cdi.k8s.io/container.main"] {
        let late = format!("{key}=nvidia.com/gpu=all");
        on.refused(Who::Admin, &["annotate", "pod", "given", &late], message)
            .await?;
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": {"name": "bare", "namespace": "default", "annotations": {key: "v.com/n=1"}},
            "target": {"apiVersion": "v1", "kind": "Node", "name": "near"},
        });
        let path = "/api/v1/namespaces/default/pods/bare/binding";
        let request = on.posted(path, &binding)?;
        on.refused(Who::Admin, &words(&request), message).await?;
    }
    // One that came with it stays, whatever else changes.
    let path = "/api/v1/namespaces/default/pods";
    let own = pod("own-device", &json!({"cdi.k8s.io/nic": "vendor.com/nic=a"}));
    let request = on.posted(path, &own)?;
    on.granted(Who::Admin, &words(&request)).await?;
    on.granted(Who::Admin, &["annotate", "pod", "own-device", "mine=1"])
        .await
}

/// Subresources that drop what they do not own, or are refused: either way nothing is written.
async fn quiet_routes(on: &Installed) -> Result<()> {
    for key in ["aliquot.dev/allocation", "aliquot.dev/preemption"] {
        for route in ["ephemeralcontainers", "resize"] {
            let change = json!({"metadata": {"annotations": {key: "own"}}}).to_string();
            let subresource = format!("--subresource={route}");
            let patch = ["patch", "pod", "given", &subresource, "-p", &change];
            let _answer = on.ask(Who::Admin, &patch).await?;
            let pod = ["get", "pod", "given", "-o", "json"];
            let pod = on.cluster.kubectl(&pod).await?.success()?;
            let pod: serde_json::Value = serde_json::from_str(&pod)?;
            let value = &pod["metadata"]["annotations"][key];
            ensure!(*value != "own", "{route} wrote {key}");
        }
    }
    Ok(())
}

/// A node's inventory, by its object and by its status.
pub(crate) async fn inventories(on: &Installed) -> Result<()> {
    let message = "of that node alone";
    let fenced = [
        "aliquot.dev/inventory",
        "aliquot.dev/capacity",
        "aliquot.dev/feature-labels",
        "aliquot.dev/leave",
    ];
    for key in fenced {
        let own = format!("{key}=own");
        on.refused(Who::Admin, &["annotate", "node", "near", &own], message)
            .await?;
        on.granted(AGENT, &["annotate", "node", "near", &format!("{key}=x")])
            .await?;
        let changed = ["annotate", "--overwrite", "node", "near", &own];
        for who in [Who::Admin, SCHEDULER] {
            let said = if matches!(who, Who::Admin) {
                message
            } else {
                "forbidden"
            };
            on.refused(who, &changed, said).await?;
        }
        let removed = ["annotate", "node", "near", &format!("{key}-")];
        on.refused(Who::Admin, &removed, message).await?;
        for value in [json!("own"), json!(null)] {
            let change = json!({"metadata": {"annotations": {key: value}}}).to_string();
            let status = [
                "patch",
                "node",
                "near",
                "--subresource=status",
                "-p",
                &change,
            ];
            on.refused(Who::Admin, &status, message).await?;
        }
        // Another node's, by the one agent.
        on.refused(AGENT, &["annotate", "node", "far", &own], message)
            .await?;
    }
    // An agent writes nothing of another node.
    let labelled = ["label", "node", "far", "a=b"];
    on.refused(AGENT, &labelled, "own node alone").await?;
    let capacity = json!({"status": {"capacity": {"a/b": "1"}}});
    let far = on.status(AGENT, "far", &capacity).await?;
    ensure!(
        far.as_ref()
            .is_some_and(|said| said.contains("own node alone")),
        "{far:?}"
    );
    let near = on.status(AGENT, "near", &capacity).await?;
    ensure!(near.is_none(), "{near:?}");
    // The kubelet's heartbeats, and what an administrator does, pass.
    on.granted(Who::Admin, &["label", "node", "near", "a=b"])
        .await?;
    on.granted(Who::Admin, &["cordon", "near"]).await?;
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let ready = ready.to_string();
    let status = [
        "patch",
        "node",
        "near",
        "--subresource=status",
        "-p",
        &ready,
    ];
    on.granted(Who::Admin, &status).await
}
