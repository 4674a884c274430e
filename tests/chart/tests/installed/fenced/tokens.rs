//! What a stolen token of each account may still do: the requests of the parts themselves are
//! granted, and the same verbs on other fields are refused.

use aliquot_cluster::wait::{PATIENCE, eventually};
use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{Node, Pod, Secret};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::{Installed, Who};

const SCHEDULER: Who = Who::Account("aliquot-scheduler");
const AGENT: Who = Who::Account("aliquot-device-plugin");
const WEBHOOK: Who = Who::Account("aliquot-webhook");
const LEAVE: Who = Who::Account("aliquot-leave");

/// Waits until the policies of all accounts are in effect.
pub(crate) async fn policies_hold(on: &Installed) -> Result<()> {
    on.pod("asked-by-account").await?;
    let label = json!({"metadata": {"labels": {"own": "1"}}});
    eventually(PATIENCE, "the policies of the accounts to hold", || async {
        let dry_run = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        let patch = Patch::Strategic(&label);
        let pods: Api<Pod> = Api::namespaced(on.client(SCHEDULER).await?, "default");
        let nodes: Api<Node> = Api::all(on.client(AGENT).await?);
        let hooks: Api<MutatingWebhookConfiguration> = Api::all(on.client(WEBHOOK).await?);
        let pod = pods.patch("asked-by-account", &dry_run, &patch).await;
        let node = nodes.patch("near", &dry_run, &patch).await;
        let hook = hooks.patch("aliquot-webhook", &dry_run, &patch).await;
        Ok((pod.is_err() && node.is_err() && hook.is_err()).then_some(()))
    })
    .await
}

/// The API server's error for this patch of a pod.
async fn of_pod(on: &Installed, name: &str, status: bool, patch: Value) -> Result<Option<String>> {
    let pods: Api<Pod> = Api::namespaced(on.client(SCHEDULER).await?, "default");
    let (params, patch) = (PatchParams::default(), Patch::Strategic(patch));
    let done = if status {
        pods.patch_status(name, &params, &patch).await
    } else {
        pods.patch(name, &params, &patch).await
    };
    Ok(done.err().map(|error| error.to_string()))
}

/// The same of the node `near`.
async fn of_node(on: &Installed, who: Who, status: bool, patch: Value) -> Result<Option<String>> {
    let nodes: Api<Node> = Api::all(on.client(who).await?);
    let (params, patch) = (PatchParams::default(), Patch::Strategic(patch));
    let done = if status {
        nodes.patch_status("near", &params, &patch).await
    } else {
        nodes.patch("near", &params, &patch).await
    };
    Ok(done.err().map(|error| error.to_string()))
}

fn granted(what: &Value, error: Option<String>) -> Result<()> {
    error.map_or(Ok(()), |error| bail!("{what}: {error}"))
}

fn refused(what: &Value, error: Option<String>, reason: &str) -> Result<()> {
    let error = error.with_context(|| format!("{what} was granted"))?;
    ensure!(error.contains(reason), "{what}: {error}");
    Ok(())
}

/// kube-scheduler's and the extender's writes of pods, and what their token did in addition.
pub(crate) async fn scheduler(on: &Installed) -> Result<()> {
    on.pod("queued").await?;
    for (status, patch) in [
        (
            false,
            json!({"metadata": {"annotations": {"aliquot.dev/nudge": "1"}}}),
        ),
        (
            false,
            json!({"metadata": {"annotations": {"aliquot.dev/preemption": "{}"}}}),
        ),
        (
            false,
            json!({"metadata": {"annotations": {"aliquot.dev/preemption": null}}}),
        ),
        (true, condition("PodScheduled")),
        (true, condition("DisruptionTarget")),
        (true, json!({"status": {"nominatedNodeName": "near"}})),
        (true, json!({"status": {"nominatedNodeName": null}})),
    ] {
        granted(&patch, of_pod(on, "queued", status, patch.clone()).await?)?;
    }
    let annotation = |key: &str| annotation(key, &json!("own"));
    for (status, patch, reason) in [
        (
            false,
            json!({"spec": {"containers": [{"name": "main", "image": "own"}]}}),
            "may not change a pod's spec",
        ),
        (
            false,
            json!({"spec": {"tolerations": [{"key": "own", "operator": "Exists"}]}}),
            "may not change a pod's spec",
        ),
        (
            false,
            json!({"metadata": {"labels": {"own": "1"}}}),
            "may not change a pod's labels, owners or finalizers",
        ),
        (
            false,
            json!({"metadata": {"finalizers": ["own/finalizer"]}}),
            "may not change a pod's labels, owners or finalizers",
        ),
        (false, annotation("own"), "may change only the annotations"),
        (
            false,
            annotation("aliquot.dev/allocation"),
            "may change only the annotations",
        ),
        (
            true,
            annotation("aliquot.dev/preemption"),
            "may change only the annotations",
        ),
        (
            true,
            json!({"metadata": {"labels": {"own": "1"}}}),
            "may not change a pod's labels",
        ),
        (
            true,
            json!({"status": {"phase": "Succeeded"}}),
            "in a pod's status",
        ),
        (
            true,
            json!({"status": {"podIP": "10.0.0.1"}}),
            "in a pod's status",
        ),
        (
            true,
            condition("Ready"),
            "only the conditions PodScheduled and DisruptionTarget",
        ),
    ] {
        let error = of_pod(on, "queued", status, patch.clone()).await?;
        refused(&patch, error, reason)?;
    }
    bindings(on).await
}

/// What a Binding of the scheduler's carries.
async fn bindings(on: &Installed) -> Result<()> {
    let binding = |metadata: Value| {
        let mut binding = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": {"name": "queued", "namespace": "default"},
            "target": {"apiVersion": "v1", "kind": "Node", "name": "near"},
        });
        for (key, value) in metadata.as_object().into_iter().flatten() {
            binding["metadata"][key] = value.clone();
        }
        binding
    };
    for path in ["pods/queued/binding", "bindings"] {
        let path = format!("/api/v1/namespaces/default/{path}");
        for metadata in [
            json!({"annotations": {"own": "1"}}),
            json!({"labels": {"own": "1"}}),
        ] {
            let request = on.posted(&path, &binding(metadata))?;
            let request: Vec<&str> = request.iter().map(String::as_str).collect();
            let reason = "a Binding by aliquot-scheduler may carry only";
            on.refused(SCHEDULER, &request, reason).await?;
        }
    }
    let path = "/api/v1/namespaces/default/pods/queued/binding";
    let carried = json!({"annotations": {"aliquot.dev/allocation": "{}", "hami.io/vgpu-devices-allocated": ";"}});
    let request = on.posted(path, &binding(carried))?;
    let request: Vec<&str> = request.iter().map(String::as_str).collect();
    on.granted(SCHEDULER, &request).await?;
    // kube-scheduler deletes the pods that it preempts.
    let gone = [
        "delete",
        "pod",
        "queued",
        "--wait=false",
        "--grace-period=0",
        "--force",
    ];
    on.granted(SCHEDULER, &gone).await
}

fn labels(key: &str, value: &Value) -> Value {
    json!({"metadata": {"labels": {key: value}}})
}

fn annotation(key: &str, value: &Value) -> Value {
    json!({"metadata": {"annotations": {key: value}}})
}

fn condition(kind: &str) -> Value {
    json!({"status": {"conditions": [{"type": kind, "status": "Unknown"}]}})
}

fn capacity(key: &str, value: &Value) -> Value {
    json!({"status": {"capacity": {key: value}}})
}

fn taints(list: &Value) -> Value {
    json!({"spec": {"taints": list}})
}

/// An agent's writes of its node.
pub(crate) async fn agent_writes(on: &Installed) -> Result<()> {
    let other = json!({"key": "own", "effect": "NoSchedule"});
    let drain = json!({"key": "aliquot.dev/gpu-drain", "effect": "NoSchedule"});

    // An administrator's, which stay.
    let tainted = json!({"spec": {"taints": [other], "unschedulable": null}});
    granted(
        &tainted,
        of_node(on, Who::Admin, false, tainted.clone()).await?,
    )?;
    let cleared = annotation("aliquot.dev/gpu-cleared", &json!("GPU-a"));
    granted(
        &cleared,
        of_node(on, Who::Admin, false, cleared.clone()).await?,
    )?;
    let existing = json!({"status": {
        "capacity": {"example.com/others": "4", "nvidia.com/gpu.old": "0", "nvidia.com/oldmem": "9"},
        "addresses": [{"type": "InternalIP", "address": "10.0.0.7"}],
    }});
    granted(
        &existing,
        of_node(on, Who::Admin, true, existing.clone()).await?,
    )?;

    let mut writes: Vec<(bool, Value)> = [
        "nvidia.com/cuda.driver-version.full",
        "nvidia.com/cuda.driver.rev",
        "nvidia.com/cuda.runtime.major",
        "nvidia.com/gpu.count",
        "nvidia.com/gpu.product",
        "nvidia.com/gpu.memory",
        "nvidia.com/gpu.replicas",
        "nvidia.com/gpu.sharing-strategy",
        "nvidia.com/gpu.family",
        "nvidia.com/gpu.compute.major",
        "nvidia.com/gpu.slices.gi",
        "nvidia.com/mig-1g.10gb.count",
        "nvidia.com/mig-1g.5gb.me.slices.ci",
        "nvidia.com/mig.strategy",
        "nvidia.com/mig.capable",
        "nvidia.com/mps.capable",
        "aliquot.dev/product.NVIDIA-A100-SXM4-80GB",
        "aliquot.dev/memory.NVIDIA-A100-SXM4-80GB",
        "aliquot.dev/mode.vgpu",
        "aliquot.dev/mig-1g.10gb.most",
    ]
    .map(|key| (false, labels(key, &json!("1"))))
    .into();
    writes.extend([
        (false, labels("nvidia.com/gpu.count", &json!(null))),
        (false, annotation("aliquot.dev/inventory", &json!("{}"))),
        (false, annotation("aliquot.dev/feature-labels", &json!("x"))),
        (false, annotation("aliquot.dev/gpu-cleared", &json!(null))),
        (false, taints(&json!([other, drain]))),
        (false, taints(&json!([other]))),
        (true, condition("AliquotProfile")),
        (true, json!({"status": {"conditions": [{"type": "AliquotProfile", "$patch": "delete"}]}})),
        // Capacity with its annotation, as the agent writes it.
        (
            true,
            json!({
                "metadata": {"annotations": {"aliquot.dev/capacity": "nvidia.com/gpumem,nvidia.com/oldmem"}},
                "status": {"capacity": {"nvidia.com/gpumem": "80000"}},
            }),
        ),
        (true, capacity("nvidia.com/oldmem", &json!(null))),
        (true, capacity("nvidia.com/gpu.old", &json!(null))),
    ]);
    for (status, patch) in writes {
        // The list of taints is replaced as a whole, as the agent does it.
        let nodes: Api<Node> = Api::all(on.client(AGENT).await?);
        let params = PatchParams::default();
        let done = match (status, patch["spec"]["taints"].is_array()) {
            (_, true) => nodes.patch("near", &params, &Patch::Merge(&patch)).await,
            (false, _) => {
                nodes
                    .patch("near", &params, &Patch::Strategic(&patch))
                    .await
            }
            (true, _) => {
                nodes
                    .patch_status("near", &params, &Patch::Strategic(&patch))
                    .await
            }
        };
        granted(&patch, done.err().map(|error| error.to_string()))?;
    }

    Ok(())
}

/// What an agent's token did in addition.
pub(crate) async fn agent(on: &Installed) -> Result<()> {
    let only_labels = "only labels of a node that describe its GPUs";
    let only_annotations = "may change only the annotations";
    let only_taint = "only the taint aliquot.dev/gpu-drain";
    let only_spec = "may not change a node's owners, finalizers or spec";
    let only_capacity = "only the capacity of Aliquot's extended resources";
    for (status, patch, reason) in [
        (
            false,
            labels("node-role.kubernetes.io/control-plane", &json!("")),
            only_labels,
        ),
        (
            false,
            labels("node-restriction.kubernetes.io/pool", &json!("a")),
            only_labels,
        ),
        (
            false,
            labels("nvidia.com/gpu.deploy.driver", &json!("false")),
            only_labels,
        ),
        (false, labels("gpu", &json!("off")), only_labels),
        (
            true,
            labels("node-role.kubernetes.io/control-plane", &json!("")),
            only_labels,
        ),
        (
            false,
            annotation("aliquot.dev/device-cordon", &json!("GPU-a")),
            only_annotations,
        ),
        (false, annotation("own", &json!("1")), only_annotations),
        (true, annotation("own", &json!("1")), only_annotations),
        (
            false,
            taints(&json!([{"key": "own/other", "effect": "NoExecute"}])),
            only_taint,
        ),
        (
            false,
            taints(&json!([{"key": "aliquot.dev/gpu-drain", "effect": "NoExecute"}])),
            only_taint,
        ),
        (false, json!({"spec": {"unschedulable": true}}), only_spec),
        (
            false,
            json!({"metadata": {"finalizers": ["own/finalizer"]}}),
            only_spec,
        ),
        (
            true,
            json!({"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.66"}]}}),
            "only conditions, capacity and allocatable",
        ),
        (
            true,
            json!({"status": {"nodeInfo": {"kubeletVersion": "v1.0.0"}}}),
            "only conditions, capacity and allocatable",
        ),
        (true, condition("Ready"), "only the conditions Aliquot"),
        (true, capacity("cpu", &json!("1000")), only_capacity),
        (
            true,
            capacity("example.com/others", &json!("9")),
            only_capacity,
        ),
        (
            true,
            capacity("example.com/others", &json!(null)),
            only_capacity,
        ),
        (
            true,
            capacity("example.com/more", &json!("1")),
            only_capacity,
        ),
    ] {
        let error = of_node(on, AGENT, status, patch.clone()).await?;
        refused(&patch, error, reason)?;
    }
    Ok(())
}

/// What the token of the uninstallation could do.
pub(crate) async fn leave(on: &Installed) -> Result<()> {
    let drain = json!({"key": "aliquot.dev/gpu-drain", "effect": "NoSchedule"});
    for patch in [
        labels("own", &json!("1")),
        taints(&json!([drain])),
        annotation("own", &json!("1")),
    ] {
        let error = of_node(on, LEAVE, false, patch.clone()).await?;
        refused(
            &patch,
            error,
            "may change only the annotation aliquot.dev/leave",
        )?;
    }
    // What the other tests expect.
    let clean = json!({"spec": {"taints": null}});
    let nodes: Api<Node> = Api::all(on.cluster.admin()?);
    let params = PatchParams::default();
    nodes.patch("near", &params, &Patch::Merge(&clean)).await?;
    Ok(())
}

/// The webhook's writes, and what its token did in addition.
pub(crate) async fn webhook(on: &Installed) -> Result<()> {
    let client = on.client(WEBHOOK).await?;
    let hooks: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let secrets: Api<Secret> = Api::namespaced(client, aliquot_chart::NAMESPACE);
    let params = PatchParams::default();
    let hook = async |patch: &Value| {
        let patch = Patch::Strategic(patch);
        let patched = hooks.patch("aliquot-webhook", &params, &patch);
        patched.await.err().map(|error| error.to_string())
    };
    let secret = async |patch: &Value| {
        let patch = Patch::Merge(patch);
        let patched = secrets.patch("aliquot-webhook-tls", &params, &patch);
        patched.await.err().map(|error| error.to_string())
    };
    let pods = |fields: Value| {
        let mut pods = fields;
        pods["name"] = json!("pods.aliquot.dev");
        json!({"webhooks": [pods]})
    };
    let bundle = pods(json!({"clientConfig": {"caBundle": "UEVN"}}));
    granted(&bundle, hook(&bundle).await)?;
    let data = json!({"data": {"1.crt": "UEVN", "1.key": "UEVN"}});
    granted(&data, secret(&data).await)?;
    let data = json!({"data": {"1.crt": null}});
    granted(&data, secret(&data).await)?;

    let only_bundle = "may change only caBundle";
    let owner = json!([{"apiVersion": "v1", "kind": "Namespace", "name": "default", "uid": "1"}]);
    let metadata = |field: &str, value: &Value| json!({"metadata": {field: value}});
    let rules = json!([{
        "apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["secrets"],
    }]);
    let mut more = pods(json!({
        "rules": rules, "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "clientConfig": {"url": "https://own.example.com/"},
    }));
    more["webhooks"][0]["name"] = json!("own.aliquot.dev");
    let reached_at = |name: &str| {
        let service = json!({"name": name, "namespace": "aliquot-system"});
        pods(json!({"clientConfig": {"service": service}}))
    };
    for (patch, reason) in [
        (pods(json!({"rules": rules})), only_bundle),
        (
            pods(json!({"matchConditions": [{"name": "own", "expression": "true"}]})),
            only_bundle,
        ),
        (pods(json!({"namespaceSelector": null})), only_bundle),
        (pods(json!({"failurePolicy": "Ignore"})), only_bundle),
        (reached_at("own"), only_bundle),
        (
            pods(json!({"clientConfig": {"service": null, "url": "https://own.example.com/"}})),
            only_bundle,
        ),
        (pods(json!({"$patch": "delete"})), only_bundle),
        (more, only_bundle),
        (metadata("ownerReferences", &owner), "may not change labels"),
        (
            metadata("labels", &json!({"own": "1"})),
            "may not change labels",
        ),
    ] {
        refused(&patch, hook(&patch).await, reason)?;
    }
    let token = json!({"kubernetes.io/service-account.name": "aliquot-scheduler"});
    for (patch, reason) in [
        (metadata("annotations", &token), "may not change labels"),
        (metadata("ownerReferences", &owner), "may not change labels"),
        (
            metadata("finalizers", &json!(["own/finalizer"])),
            "may not change labels",
        ),
        (json!({"immutable": true}), "only the data of its Secret"),
        // Kubernetes itself refuses this, too.
        (
            json!({"type": "kubernetes.io/service-account-token"}),
            "type",
        ),
    ] {
        refused(&patch, secret(&patch).await, reason)?;
    }
    Ok(())
}
