//! Every route by which an annotation of Aliquot's could be written, for accounts that may not write
//! it; even the administrator, with all permissions, may not.

use anyhow::{Result, ensure};
use serde_json::json;

use super::{Installed, Who, pod};

const SCHEDULER: Who = Who::Account("aliquot-scheduler");
const AGENT: Who = Who::Account("aliquot-device-plugin");
const MESSAGE: &str = "only aliquot-scheduler may write the annotation";

fn words(request: &[String]) -> Vec<&str> {
    request.iter().map(String::as_str).collect()
}

/// Whoever may patch a pod may ask for a resize, in the form that the scheduler reads; the scheduler
/// writes how far it is only where somebody asked.
async fn resize(on: &Installed) -> Result<()> {
    let early = [
        "annotate",
        "pod",
        "given",
        "aliquot.dev/resize-status=early",
    ];
    let only = "may change only the annotations";
    on.refused(SCHEDULER, &early, only).await?;
    for text in [
        "main",
        "main:gpumem=6Gi",
        "main:gpus=1",
        "main:gpumem=1;id=a",
        "",
    ] {
        let own = format!("aliquot.dev/resize={text}");
        let asked = ["annotate", "--overwrite", "pod", "given", &own];
        let expected = "cannot be read; expected: main:gpumem=6000,gpucores=40";
        on.refused(Who::Admin, &asked, expected).await?;
    }
    let text =
        "aliquot.dev/resize=main:gpumem=6k,gpucores=40 side:gpumem-percentage=5 deadline=60 id=a-1";
    let asked = ["annotate", "--overwrite", "pod", "given", text];
    on.granted(Who::Admin, &asked).await
}

/// A pod's allocation, its preemption plan and how far its resize is.
pub(crate) async fn allocations(on: &Installed) -> Result<()> {
    on.pod("given").await?;
    on.pod("bare").await?;
    for key in [
        "aliquot.dev/allocation",
        "aliquot.dev/preemption",
        "aliquot.dev/resize-status",
    ] {
        let own = format!("{key}=own");
        if key == "aliquot.dev/resize-status" {
            resize(on).await?;
        }
        // On creation of the pod.
        let copied = pod("copied", &json!({key: "{}"}));
        let path = "/api/v1/namespaces/default/pods";
        let request = on.posted(path, &copied)?;
        on.refused(Who::Admin, &words(&request), MESSAGE).await?;
        // Set, changed, removed; the scheduler may do it.
        on.refused(Who::Admin, &["annotate", "pod", "given", &own], MESSAGE)
            .await?;
        let value = format!("{key}=the scheduler's");
        if key == "aliquot.dev/allocation" {
            // Only with a Binding.
            let binding = json!({
                "apiVersion": "v1", "kind": "Binding",
                "metadata": {
                    "name": "given", "namespace": "default",
                    "annotations": {key: "the scheduler's"},
                },
                "target": {"apiVersion": "v1", "kind": "Node", "name": "near"},
            });
            let path = "/api/v1/namespaces/default/pods/given/binding";
            let request = on.posted(path, &binding)?;
            on.granted(SCHEDULER, &words(&request)).await?;
        } else {
            on.granted(SCHEDULER, &["annotate", "pod", "given", &value])
                .await?;
        }
        let changed = ["annotate", "--overwrite", "pod", "given", &own];
        on.refused(Who::Admin, &changed, MESSAGE).await?;
        let removed = ["annotate", "pod", "given", &format!("{key}-")];
        on.refused(Who::Admin, &removed, MESSAGE).await?;
        // In the pod's status.
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
    request(on).await?;
    // Other annotations can be written, on the same objects and routes.
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

/// Annotations with CDI devices, which the webhook checks on new pods, cannot be added later.
async fn devices(on: &Installed) -> Result<()> {
    let message = "cannot be added to or changed on an existing pod";
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
    // One that the pod was created with stays, whatever else changes.
    let path = "/api/v1/namespaces/default/pods";
    let own = pod("own-device", &json!({"cdi.k8s.io/nic": "vendor.com/nic=a"}));
    let request = on.posted(path, &own)?;
    on.granted(Who::Admin, &words(&request)).await?;
    on.granted(Who::Admin, &["annotate", "pod", "own-device", "mine=1"])
        .await
}

/// The request as an annotation, which the webhook checks on new pods, stays as it is.
async fn request(on: &Installed) -> Result<()> {
    let key = "aliquot.dev/request";
    let message = "of an existing pod cannot be added, changed or removed";
    let added = format!("{key}=own");
    on.refused(Who::Admin, &["annotate", "pod", "given", &added], message)
        .await?;
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding",
        "metadata": {"name": "bare", "namespace": "default", "annotations": {key: "own"}},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "near"},
    });
    let path = "/api/v1/namespaces/default/pods/bare/binding";
    let bound = on.posted(path, &binding)?;
    on.refused(Who::Admin, &words(&bound), message).await?;
    let path = "/api/v1/namespaces/default/pods";
    let own = pod("own-request", &json!({key: r#"{"v":1,"containers":{}}"#}));
    let created = on.posted(path, &own)?;
    on.granted(Who::Admin, &words(&created)).await?;
    let changed = ["annotate", "--overwrite", "pod", "own-request", &added];
    on.refused(Who::Admin, &changed, message).await?;
    let removed = ["annotate", "pod", "own-request", &format!("{key}-")];
    on.refused(Who::Admin, &removed, message).await?;
    let change = json!({"metadata": {"annotations": {key: "own"}}}).to_string();
    let status = [
        "patch",
        "pod",
        "own-request",
        "--subresource=status",
        "-p",
        &change,
    ];
    on.refused(Who::Admin, &status, message).await?;
    on.granted(Who::Admin, &["annotate", "pod", "own-request", "mine=1"])
        .await
}

/// Subresources that drop other fields, or are refused: either way nothing is written.
async fn quiet_routes(on: &Installed) -> Result<()> {
    for key in ["aliquot.dev/allocation", "aliquot.dev/preemption"] {
        for route in ["ephemeralcontainers", "resize"] {
            let change = json!({"metadata": {"annotations": {key: "own"}}});
            let _answer = on.subresource("given", route, &change, false).await?;
            let pod = ["get", "pod", "given", "-o", "json"];
            let pod = on.cluster.kubectl(&pod).await?.success()?;
            let pod: serde_json::Value = serde_json::from_str(&pod)?;
            let value = &pod["metadata"]["annotations"][key];
            ensure!(*value != "own", "{route} wrote {key}");
        }
    }
    Ok(())
}

/// A node's inventory, in its metadata and through its status.
pub(crate) async fn inventories(on: &Installed) -> Result<()> {
    let message = "on the node may write the node's annotation";
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
            let reason = if matches!(who, Who::Admin) {
                message
            } else {
                "forbidden"
            };
            on.refused(who, &changed, reason).await?;
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
        // Of another node, by the agent.
        on.refused(AGENT, &["annotate", "node", "far", &own], message)
            .await?;
    }
    // An agent may not write another node at all.
    let labelled = ["label", "node", "far", "aliquot.dev/mode.vgpu=1"];
    on.refused(AGENT, &labelled, "only the node that it runs on")
        .await?;
    let capacity = json!({"status": {"capacity": {"nvidia.com/gpumem": "1"}}});
    let far = on.status(AGENT, "far", &capacity).await?;
    ensure!(
        far.as_ref()
            .is_some_and(|message| message.contains("only the node that it runs on")),
        "{far:?}"
    );
    let near = on.status(AGENT, "near", &capacity).await?;
    ensure!(near.is_none(), "{near:?}");
    // The kubelet's heartbeats and an administrator's changes are accepted.
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
