//! What a stolen token of each account may still do: the requests of the parts themselves are
//! granted, and the same verbs on other fields are refused.

use aliquot_chart::NAMESPACE;
use anyhow::{Result, ensure};
use kube::api::GetParams;
use kube::core::Request;
use serde_json::{Value, json};

use super::{
    AGENT, CLEANUP, HOOKS, Installed, MONITOR, SCHEDULER, WEBHOOK, Who, annotation, binding, labels,
};

const WEBHOOK_SECRET: &str = "/api/v1/namespaces/aliquot-system/secrets/aliquot-webhook-tls";
const POD: &str = "pods/queued";
const POD_STATUS: &str = "pods/queued/status";
const NODE: &str = "nodes/near";
const NODE_STATUS: &str = "nodes/near/status";

/// kube-scheduler's and the extender's writes of pods, and what their token did in addition.
pub(crate) async fn scheduler(on: &Installed) -> Result<()> {
    on.pod("queued").await?;
    let own = json!("own");
    let (spec, only) = (
        "may not change a pod's spec",
        "may change only the annotations",
    );
    let metadata = "may not change a pod's labels, owners or finalizers";
    let (status_only, labels_stay) = ("in a pod's status", "may not change a pod's labels");
    let conditions = "only the conditions PodScheduled and DisruptionTarget";
    let image = json!({"spec": {"containers": [{"name": "main", "image": "own"}]}});
    let tolerations = json!({"spec": {"tolerations": [{"key": "own", "operator": "Exists"}]}});
    let plan = |value: Value| annotation("aliquot.dev/preemption", &value);
    let allocation = annotation("aliquot.dev/allocation", &own);
    let nominated = |name: Value| status("nominatedNodeName", &name);
    let address = status("podIP", &json!("10.0.0.1"));
    for (path, patch, reason) in [
        (POD, annotation("aliquot.dev/requeue", &json!("1")), ""),
        (POD, plan(json!("{}")), ""),
        (POD, plan(json!(null)), ""),
        (POD_STATUS, condition("PodScheduled"), ""),
        (POD_STATUS, condition("DisruptionTarget"), ""),
        (POD_STATUS, nominated(json!("near")), ""),
        (POD_STATUS, nominated(json!(null)), ""),
        (POD, image, spec),
        (POD, tolerations, spec),
        (POD, labels("own", &own), metadata),
        (POD, finalizers(), metadata),
        (POD, annotation("own", &own), only),
        (POD, allocation, only),
        (POD_STATUS, plan(own.clone()), only),
        (POD_STATUS, labels("own", &own), labels_stay),
        (
            POD_STATUS,
            status("phase", &json!("Succeeded")),
            status_only,
        ),
        (POD_STATUS, address, status_only),
        (POD_STATUS, condition("Ready"), conditions),
    ] {
        on.patch(SCHEDULER, path, patch, reason).await?;
    }

    // What a Binding of the scheduler's carries.
    let only = "a Binding by aliquot-scheduler may carry only";
    let mut labelled = binding("queued", &json!({}));
    labelled["metadata"]["labels"] = json!({"own": "1"});
    for carried in [binding("queued", &json!({"own": "1"})), labelled] {
        for (path, reason) in [("pods/queued/binding", only), ("bindings", "orbidden")] {
            on.post(SCHEDULER, path, carried.clone(), reason).await?;
        }
    }
    let carried = json!({"aliquot.dev/allocation": "{}", "hami.io/vgpu-devices-allocated": ";"});
    let carried = binding("queued", &carried);
    on.post(SCHEDULER, "pods/queued/binding", carried, "")
        .await?;
    // Evicted as one of kube-scheduler's victims.
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": {"name": "queued", "namespace": "default"},
    });
    for (who, reason) in [
        (AGENT, "orbidden"),
        (MONITOR, "orbidden"),
        (WEBHOOK, "orbidden"),
        (CLEANUP, "orbidden"),
        (SCHEDULER, ""),
    ] {
        on.post(who, "pods/queued/eviction", eviction.clone(), reason)
            .await?;
    }
    leases(on).await?;
    proxied_ports(on).await
}

/// The lease of its own kube-scheduler, and no other.
async fn leases(on: &Installed) -> Result<()> {
    let account = format!("--as=system:serviceaccount:{NAMESPACE}:aliquot-scheduler");
    for (verb, lease, namespace, expected) in [
        ("update", "leases/aliquot-scheduler", NAMESPACE, "yes"),
        ("create", "leases", NAMESPACE, "yes"),
        ("update", "leases/kube-scheduler", "kube-system", "no"),
        ("patch", "leases/kube-scheduler", "kube-system", "no"),
        ("create", "leases", "kube-system", "no"),
    ] {
        let ask = ["auth", "can-i", verb, lease, "-n", namespace, &account];
        let answer = on.cluster.kubectl(&ask).await?;
        let answered = answer.stdout.trim() == expected;
        ensure!(answered, "{verb} {lease} in {namespace}: {answer:?}");
    }
    Ok(())
}

/// Of Aliquot's pods, the scheduler asks the monitors only.
async fn proxied_ports(on: &Installed) -> Result<()> {
    for (port, expected) in [
        (9396, "pods \"nobody\" not found"),
        (9394, "may not CONNECT pods/proxy"),
    ] {
        let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/https:nobody:{port}/proxy");
        let request = Request::new(path).get("usage", &GetParams::default())?;
        let answer = on.client(SCHEDULER).await?.request::<Value>(request).await;
        let error = answer.err().map(|error| error.to_string());
        super::check(&port, error, expected)?;
    }
    Ok(())
}

fn status(key: &str, value: &Value) -> Value {
    json!({"status": {key: value}})
}

fn finalizers() -> Value {
    json!({"metadata": {"finalizers": ["own/finalizer"]}})
}

/// What an agent writes of its node, and what its token did in addition.
pub(crate) async fn agent(on: &Installed) -> Result<()> {
    agents_labels(on).await?;
    let other = json!({"key": "own", "effect": "NoSchedule"});
    let drain = json!({"key": "aliquot.dev/gpu-drain", "effect": "NoSchedule"});
    // An administrator's, which stay.
    let existing = json!({
        "capacity": {"example.com/others": "4", "nvidia.com/gpu.old": "0", "nvidia.com/oldmem": "9"},
        "addresses": [{"type": "InternalIP", "address": "10.0.0.7"}],
    });
    let schedulable = json!({"spec": {"taints": [other], "unschedulable": null}});
    for (path, patch) in [
        (NODE, schedulable),
        (NODE, annotation("aliquot.dev/gpu-cleared", &json!("GPU-a"))),
        (NODE_STATUS, json!({ "status": existing })),
    ] {
        on.patch(Who::Admin, path, patch, "").await?;
    }
    // Capacity with its annotation, as the agent writes it.
    let mut counted = capacity("nvidia.com/gpumem", &json!("80000"));
    let names = "nvidia.com/gpumem,nvidia.com/oldmem";
    counted["metadata"] = json!({"annotations": {"aliquot.dev/capacity": names}});
    let deleted = json!([{"type": "AliquotProfile", "$patch": "delete"}]);
    let only_labels = "only labels of a node that describe its GPUs";
    let only_annotations = "may change only the annotations";
    let only_taint = "only the taint aliquot.dev/gpu-drain";
    let only_spec = "may not change a node's owners, finalizers or spec";
    let only_capacity = "only the capacity of Aliquot's extended resources";
    let only_status = "only conditions, capacity and allocatable";
    let role = "node-role.kubernetes.io/control-plane";
    let restricted = "node-restriction.kubernetes.io/pool";
    let deploy = "nvidia.com/gpu.deploy.driver";
    let address = json!([{"type": "InternalIP", "address": "10.0.0.66"}]);
    let address = status("addresses", &address);
    let kubelet = status("nodeInfo", &json!({"kubeletVersion": "v1.0.0"}));
    let only_conditions = "only the conditions Aliquot";
    let of = |name: &str, value: Value| annotation(&format!("aliquot.dev/{name}"), &value);
    let others = |amount: Value| capacity("example.com/others", &amount);
    let more = capacity("example.com/more", &json!("1"));
    let drains = taint("aliquot.dev/gpu-drain", "NoExecute");
    let old = |name: &str| capacity(name, &json!(null));
    let unschedulable = json!({"spec": {"unschedulable": true}});
    for (path, patch, reason) in [
        (NODE, labels("aliquot.dev/mode.vgpu", &json!(null)), ""),
        (NODE, of("inventory", json!("{}")), ""),
        (NODE, of("feature-labels", json!("x")), ""),
        (NODE, of("gpu-cleared", json!(null)), ""),
        (NODE, taints(&json!([other, drain])), ""),
        (NODE, taints(&json!([other])), ""),
        (NODE_STATUS, condition("AliquotProfile"), ""),
        (NODE_STATUS, status("conditions", &deleted), ""),
        (NODE_STATUS, counted, ""),
        (NODE_STATUS, old("nvidia.com/oldmem"), ""),
        (NODE_STATUS, old("nvidia.com/gpu.old"), ""),
        (NODE, labels(role, &json!("")), only_labels),
        (NODE, labels(restricted, &json!("a")), only_labels),
        (NODE, labels(deploy, &json!("false")), only_labels),
        (NODE, labels("gpu", &json!("off")), only_labels),
        (NODE_STATUS, labels(role, &json!("")), only_labels),
        (NODE, of("device-cordon", json!("GPU-a")), only_annotations),
        (NODE, own(), only_annotations),
        (NODE_STATUS, own(), only_annotations),
        (NODE, taint("own/other", "NoExecute"), only_taint),
        (NODE, drains, only_taint),
        (NODE, unschedulable, only_spec),
        (NODE, finalizers(), only_spec),
        (NODE_STATUS, address, only_status),
        (NODE_STATUS, kubelet, only_status),
        (NODE_STATUS, condition("Ready"), only_conditions),
        (NODE_STATUS, capacity("cpu", &json!("1000")), only_capacity),
        (NODE_STATUS, others(json!("9")), only_capacity),
        (NODE_STATUS, others(json!(null)), only_capacity),
        (NODE_STATUS, more, only_capacity),
    ] {
        on.patch(AGENT, path, patch, reason).await?;
    }
    Ok(())
}

async fn agents_labels(on: &Installed) -> Result<()> {
    for label in [
        "aliquot.dev/product.NVIDIA-A100-SXM4-80GB",
        "aliquot.dev/memory.NVIDIA-A100-SXM4-80GB",
        "aliquot.dev/mode.vgpu",
        "aliquot.dev/mig.strategy",
        "aliquot.dev/mig.capable",
        "aliquot.dev/mig-1g.10gb.most",
        "aliquot.dev/mig-1g.10gb.count",
        "aliquot.dev/mig-1g.5gb.me.product",
    ] {
        on.patch(AGENT, NODE, labels(label, &json!("1")), "")
            .await?;
    }
    Ok(())
}

fn own() -> Value {
    annotation("own", &json!("1"))
}

fn condition(kind: &str) -> Value {
    status("conditions", &json!([{"type": kind, "status": "Unknown"}]))
}

fn capacity(key: &str, value: &Value) -> Value {
    status("capacity", &json!({key: value}))
}

fn taints(list: &Value) -> Value {
    json!({"spec": {"taints": list}})
}

fn taint(key: &str, effect: &str) -> Value {
    taints(&json!([{"key": key, "effect": effect}]))
}

/// What the token of the uninstallation could do.
pub(crate) async fn cleanup(on: &Installed) -> Result<()> {
    let only = "may change only the annotation aliquot.dev/cleanup";
    for patch in [
        labels("own", &json!("1")),
        taint("aliquot.dev/gpu-drain", "NoSchedule"),
        own(),
    ] {
        on.patch(CLEANUP, NODE, patch, only).await?;
    }
    // What the other tests expect.
    on.patch(Who::Admin, NODE, taints(&json!(null)), "").await
}

/// The webhook's writes, and what its token did in addition.
pub(crate) async fn webhook(on: &Installed) -> Result<()> {
    let hook = |field: &str, value: &Value| json!({"webhooks": [{"name": "pods.aliquot.dev", field: value}]});
    let metadata = |field: &str, value: &Value| json!({"metadata": {field: value}});
    let owner = json!([{"apiVersion": "v1", "kind": "Namespace", "name": "default", "uid": "1"}]);
    let rules = json!([{
        "apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["secrets"],
    }]);
    let own_url = json!({"service": null, "url": "https://own.example.com/"});
    let own_service = json!({"service": {"name": "own", "namespace": "aliquot-system"}});
    let conditions = json!([{"name": "own", "expression": "true"}]);
    let more = json!({"webhooks": [{
        "name": "own.aliquot.dev", "rules": rules, "sideEffects": "None",
        "admissionReviewVersions": ["v1"], "clientConfig": {"url": "https://own.example.com/"},
    }]});
    let bundle = json!({"caBundle": "UEVN"});
    let pair = json!({"data": {"1.crt": "UEVN", "1.key": "UEVN"}});
    let only_secret = "only the data of its Secret";
    let (only_bundle, only_data) = ("may change only caBundle", "may not change labels");
    let token = json!({"kubernetes.io/service-account.name": "aliquot-scheduler"});
    let token_type = json!({"type": "kubernetes.io/service-account-token"});
    for (path, patch, reason) in [
        (HOOKS, hook("clientConfig", &bundle), ""),
        (WEBHOOK_SECRET, pair, ""),
        (WEBHOOK_SECRET, json!({"data": {"1.crt": null}}), ""),
        (HOOKS, hook("rules", &rules), only_bundle),
        (HOOKS, hook("matchConditions", &conditions), only_bundle),
        (HOOKS, hook("namespaceSelector", &json!(null)), only_bundle),
        (HOOKS, hook("failurePolicy", &json!("Ignore")), only_bundle),
        (HOOKS, hook("clientConfig", &own_service), only_bundle),
        (HOOKS, hook("clientConfig", &own_url), only_bundle),
        (HOOKS, hook("$patch", &json!("delete")), only_bundle),
        (HOOKS, more, only_bundle),
        (HOOKS, metadata("ownerReferences", &owner), only_data),
        (HOOKS, metadata("labels", &json!({"own": "1"})), only_data),
        (WEBHOOK_SECRET, metadata("annotations", &token), only_data),
        (
            WEBHOOK_SECRET,
            metadata("ownerReferences", &owner),
            only_data,
        ),
        (WEBHOOK_SECRET, finalizers(), only_data),
        (WEBHOOK_SECRET, json!({"immutable": true}), only_secret),
        // Kubernetes itself refuses this, too.
        (WEBHOOK_SECRET, token_type, "type"),
    ] {
        on.patch(WEBHOOK, path, patch, reason).await?;
    }
    Ok(())
}
