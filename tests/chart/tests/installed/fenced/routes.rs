//! Every route by which an annotation of Aliquot's could be written, for every account that may not write
//! it; even the administrator, with all permissions, may not. One request each, so that it is the write
//! that is refused.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use serde_json::json;

use super::{
    AGENT, CLEANUP, Installed, MONITOR, SCHEDULER, WEBHOOK, Who, annotation, binding, labels, pod,
};

/// The word of RBAC and of the policies.
const FORBIDDEN: &str = "orbidden";
const ALLOCATION: &str = "aliquot.dev/allocation";
/// An object, and its status.
const ROUTES: [&str; 2] = ["", "/status"];

/// Checks that pods with and without the annotation stay as they are, by whichever route: it is set,
/// changed and removed.
async fn closed(on: &Installed, who: Who, key: &str, why: &str) -> Result<()> {
    for route in ROUTES {
        for (name, value) in [
            ("given", json!("own")),
            ("given", json!(null)),
            ("bare", json!("own")),
        ] {
            let path = format!("pods/{name}{route}");
            on.patch(who, &path, annotation(key, &value), why).await?;
        }
    }
    // A kubelet binds no pod.
    if matches!(who, Who::Kubelet) {
        return Ok(());
    }
    for path in ["pods/bare/binding", "bindings"] {
        let carried = binding("bare", &json!({key: "{}"}));
        on.post(who, path, carried, why).await?;
    }
    Ok(())
}

/// A pod's allocation, its preemption plan and how far its resize is; then HAMi's annotations, the request
/// and CDI devices.
pub(crate) async fn pods(on: &Installed) -> Result<()> {
    for name in ["given", "bare"] {
        on.pod(name).await?;
    }
    resize(on).await?;
    let first = json!("the scheduler's");
    let bound = binding("given", &json!({ALLOCATION: first}));
    on.post(SCHEDULER, "pods/given/binding", bound, "").await?;
    for key in [
        ALLOCATION,
        "aliquot.dev/preemption",
        "aliquot.dev/resize-status",
    ] {
        if key != ALLOCATION {
            let own = annotation(key, &first);
            on.patch(SCHEDULER, "pods/given", own, "").await?;
        }
        let why = "only aliquot-scheduler may write the annotation";
        let copied = pod("copied", &json!({key: "{}"}));
        on.post(Who::Admin, "pods", copied, why).await?;
        closed(on, Who::Admin, key, why).await?;
        for who in [AGENT, MONITOR, WEBHOOK, CLEANUP, Who::Kubelet] {
            closed(on, who, key, FORBIDDEN).await?;
        }
        let pods: Api<Pod> = Api::namespaced(on.cluster.admin()?, "default");
        // Subresources drop other fields, or are refused.
        for route in ["ephemeralcontainers", "resize"] {
            let path = format!("pods/given/{route}");
            let own = annotation(key, &json!("own"));
            on.patched(Who::Admin, &path, &own, false).await?;
        }
        let annotations = pods.get("given").await?.metadata.annotations;
        let current = annotations.and_then(|all| all.get(key).cloned());
        ensure!(current.as_deref() == first.as_str(), "{key}: {current:?}");
    }

    for key in ["hami.io/vgpu-devices-allocated", "hami.io/bind-phase"] {
        let own = annotation(key, &json!("x"));
        on.patch(Who::Hami, "pods/given", own, "").await?;
        let why = "only HAMi's scheduler and device plugin may write the annotations";
        let copied = pod("copied", &json!({key: "x"}));
        on.post(Who::Admin, "pods", copied, why).await?;
        closed(on, Who::Admin, key, why).await?;
    }

    mirror_pods(on).await?;

    // What the webhook checks on new pods stays as the pod was created with it.
    let created = json!({
        "aliquot.dev/request": r#"{"v":1,"containers":{}}"#,
        "cdi.k8s.io/nic": "vendor.com/nic=a",
    });
    let created = pod("created", &created);
    on.post(Who::Admin, "pods", created, "").await?;
    let fixed = "of an existing pod cannot be added, changed or removed";
    let late = "cannot be added to or changed on an existing pod";
    for (key, why) in [
        ("aliquot.dev/request", fixed),
        ("cdi.k8s.io/x", late),
        ("nvidia.cdi.k8s.io/container.main", late),
    ] {
        let own = annotation(key, &json!("nvidia.com/gpu=all"));
        on.patch(Who::Admin, "pods/given", own, why).await?;
        let carried = binding("bare", &json!({key: "nvidia.com/gpu=all"}));
        on.post(Who::Admin, "pods/bare/binding", carried, why)
            .await?;
    }
    for value in [json!("own"), json!(null)] {
        for route in ROUTES {
            let path = format!("pods/created{route}");
            let own = annotation("aliquot.dev/request", &value);
            on.patch(Who::Admin, &path, own, fixed).await?;
        }
    }

    // Other annotations can be written, on the same objects and routes.
    for (name, key) in [
        ("given", "mine"),
        ("created", "mine"),
        ("given", "hami.io/gpu-scheduler-policy"),
    ] {
        let path = format!("pods/{name}");
        let own = annotation(key, &json!("binpack"));
        on.patch(Who::Admin, &path, own, "").await?;
    }
    for who in [Who::Admin, Who::Kubelet] {
        let message = json!({"status": {"message": "x"}});
        on.patch(who, "pods/given/status", message, "").await?;
    }
    let plain = binding("bare", &json!({}));
    on.post(Who::Admin, "pods/bare/binding", plain, "").await
}

/// Only a kubelet says which pod is its copy of a static pod, and under which uid that one runs.
async fn mirror_pods(on: &Installed) -> Result<()> {
    let why = "only a kubelet may write the annotations kubernetes.io/config.mirror";
    let (mirror, hash) = ("kubernetes.io/config.mirror", "kubernetes.io/config.hash");
    for key in [mirror, hash] {
        let mut forged = pod("forged", &json!({key: "x"}));
        // The API server asks for it.
        forged["spec"]["nodeName"] = json!("near");
        on.post(Who::Admin, "pods", forged, why).await?;
        for path in ["pods/bare/binding", "bindings"] {
            let carried = binding("bare", &json!({key: "x"}));
            on.post(Who::Admin, path, carried, why).await?;
        }
    }
    // The API server itself lets nobody add the other one.
    let later = annotation(hash, &json!("x"));
    on.patch(Who::Admin, "pods/bare", later, why).await?;

    let nodes: Api<Node> = Api::all(on.cluster.admin()?);
    let owner = json!({
        "apiVersion": "v1", "kind": "Node", "controller": true,
        "name": "near", "uid": nodes.get("near").await?.metadata.uid,
    });
    let mut copy = pod("copy-near", &json!({mirror: "x", hash: "x"}));
    copy["metadata"]["ownerReferences"] = json!([owner]);
    copy["spec"]["nodeName"] = json!("near");
    on.post(Who::Kubelet, "pods", copy, "").await
}

/// Whoever may patch a pod may ask for a resize, in the form that the scheduler reads; the scheduler
/// writes how far it is only where somebody asked.
async fn resize(on: &Installed) -> Result<()> {
    let early = annotation("aliquot.dev/resize-status", &json!("early"));
    let only = "may change only the annotations";
    on.patch(SCHEDULER, "pods/given", early, only).await?;
    let unreadable = "cannot be read; expected: main:gpumem=6000,gpucores=40";
    let readable = "main:gpumem=6k,gpucores=40 side:gpumem-percentage=5 deadline=60 id=a-1";
    for (text, reason) in [
        ("main", unreadable),
        ("main:gpumem=6Gi", unreadable),
        ("main:gpus=1", unreadable),
        ("main:gpumem=1;id=a", unreadable),
        ("", unreadable),
        (readable, ""),
    ] {
        let asked = annotation("aliquot.dev/resize", &json!(text));
        on.patch(Who::Admin, "pods/given", asked, reason).await?;
    }
    Ok(())
}

/// What a node's agent writes about it, in its metadata and through its status.
pub(crate) async fn nodes(on: &Installed) -> Result<()> {
    let why = "on the node may write the node's annotation";
    for key in [
        "aliquot.dev/inventory",
        "aliquot.dev/capacity",
        "aliquot.dev/feature-labels",
        "aliquot.dev/cleanup",
    ] {
        for route in ROUTES {
            let (near, far) = (format!("nodes/near{route}"), format!("nodes/far{route}"));
            on.patch(AGENT, &near, annotation(key, &json!("x")), "")
                .await?;
            for value in [json!("own"), json!(null)] {
                let own = || annotation(key, &value);
                for who in [SCHEDULER, MONITOR, WEBHOOK, Who::Kubelet] {
                    on.patch(who, &near, own(), FORBIDDEN).await?;
                }
                // Who may delete all agents may give back a node of one.
                let asks = key == "aliquot.dev/cleanup";
                let reason = if asks { "" } else { why };
                on.patch(Who::Admin, &near, own(), reason).await?;
                if !asks {
                    on.patch(CLEANUP, &near, own(), FORBIDDEN).await?;
                }
            }
            on.patch(AGENT, &far, annotation(key, &json!("own")), why)
                .await?;
        }
    }
    let cleanup = annotation("aliquot.dev/cleanup", &json!("y"));
    on.patch(CLEANUP, "nodes/near", cleanup, "").await?;
    // An agent may not write another node at all.
    let label = labels("aliquot.dev/mode.vgpu", &json!("1"));
    let only_its = "only the node that it runs on";
    on.patch(AGENT, "nodes/far", label, only_its).await?;
    for (path, reason) in [("nodes/far/status", only_its), ("nodes/near/status", "")] {
        let capacity = json!({"status": {"capacity": {"nvidia.com/gpumem": "1"}}});
        on.patch(AGENT, path, capacity, reason).await?;
    }
    // The kubelet's heartbeats and an administrator's changes are accepted.
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    for (path, change) in [
        ("nodes/near", labels("a", &json!("b"))),
        ("nodes/near", json!({"spec": {"unschedulable": true}})),
        ("nodes/near/status", ready),
    ] {
        on.patch(Who::Admin, path, change, "").await?;
    }
    Ok(())
}
