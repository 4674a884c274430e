//! The settings of NVIDIA's GPU Operator that concern Aliquot, in its `ClusterPolicy`.

use k8s_openapi::api::core::v1::Node;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::{Api, Client};
use serde_json::Value;

use super::{is_ours, label};
use crate::components::node_name;
use crate::doctor::facts::{Fact, fact};
use crate::doctor::finding::{About, Finding};
use crate::table::some;

const CHECK: &str = "gpu-operator";
/// Parts that Aliquot replaces: the part, its section, and the label that keeps it off a node.
const REPLACED: [(&str, &str, &str); 2] = [
    (
        "NVIDIA's device plugin",
        "devicePlugin",
        "nvidia.com/gpu.deploy.device-plugin",
    ),
    (
        "MIG manager",
        "migManager",
        "nvidia.com/gpu.deploy.mig-manager",
    ),
];
/// Where the operator's driver container has its root, unless the policy says otherwise.
const DRIVER_ROOT: &str = "/run/nvidia/driver";

/// The policies; a cluster without the operator has none.
pub(super) async fn policies(client: &Client) -> Fact<Vec<DynamicObject>> {
    let kind = GroupVersionKind::gvk("nvidia.com", "v1", "ClusterPolicy");
    let kind = ApiResource::from_gvk_with_plural(&kind, "clusterpolicies");
    let policies: Api<DynamicObject> = Api::all_with(client.clone(), &kind);
    match policies.list(&ListParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
        found => fact(found).map(|found| found.items),
    }
}

/// What each policy means for an installation.
pub(super) fn checks(
    policies: &Fact<Vec<DynamicObject>>,
    nodes: &[Node],
    about: &About,
) -> Vec<Finding> {
    let policies = match policies {
        Err(why) => return vec![about.unknown(CHECK, why)],
        Ok(policies) => policies,
    };
    if policies.is_empty() {
        return vec![about.ok(CHECK, "there is no ClusterPolicy of GPU Operator")];
    }
    let finding = |policy: &DynamicObject| {
        let name = policy.metadata.name.as_deref().unwrap_or_default();
        of_policy(
            &policy.data["spec"],
            nodes,
            &About(format!("ClusterPolicy {name}")),
        )
    };
    policies.iter().flat_map(finding).collect()
}

/// Whether a part is on, as it is where its section does not say.
fn is_on(spec: &Value, part: &str) -> bool {
    spec[part]["enabled"] != false
}

fn of_policy(spec: &Value, nodes: &[Node], about: &About) -> Vec<Finding> {
    let mut found: Vec<Finding> = REPLACED
        .into_iter()
        .map(|part| replaced(spec, nodes, part, about))
        .collect();
    found.push(validator(spec, about));
    found.push(driver(spec, about));
    if spec["cdi"]["enabled"] == false {
        found.push(about.warning(
            CHECK,
            "cdi.enabled is false: NVIDIA's runtime is the default one, and opens GPUs to every image that sets NVIDIA_VISIBLE_DEVICES",
            "set cdi.enabled=true, or close that on each node (docs/guides/container-runtime.md#nvidias-runtime)",
        ));
    }
    found
}

/// A part that must not run beside the agent.
fn replaced(
    spec: &Value,
    nodes: &[Node],
    (part, section, key): (&str, &str, &str),
    about: &About,
) -> Finding {
    if !is_on(spec, section) {
        return about.ok(CHECK, format!("{part} is disabled ({section}.enabled)"));
    }
    let runs = nodes
        .iter()
        .filter(|node| is_ours(node) && label(node, key) != Some("false"));
    let names: Vec<&str> = runs.map(node_name).collect();
    if names.is_empty() {
        return about.note(
            CHECK,
            format!("{section}.enabled: {part} runs on every node with GPUs that has no label {key}=false"),
            &format!("kubectl label node NODE {key}=false, before gpu=on"),
        );
    }
    about.problem(
        CHECK,
        format!(
            "{section}.enabled: {part} also runs on nodes that have the label gpu=on: {}",
            some(names)
        ),
        &format!("kubectl label node NODE {key}=false, or set {section}.enabled=false"),
    )
}

/// The validator starts no pod that asks for a GPU and names its node.
fn validator(spec: &Value, about: &About) -> Finding {
    let variables = spec["validator"]["plugin"]["env"].as_array();
    let mut variables = variables.into_iter().flatten();
    if variables.any(|one| one["name"] == "WITH_WORKLOAD" && one["value"] == "false") {
        return about.ok(CHECK, "the validator starts no pod that asks for a GPU");
    }
    about.warning(
        CHECK,
        "the validator starts a pod that asks for nvidia.com/gpu and names its node: it never ends on a node of Aliquot's, and other parts of the operator wait for it",
        "set WITH_WORKLOAD to \"false\" under validator.plugin.env",
    )
}

/// Where the agent finds the driver.
fn driver(spec: &Value, about: &About) -> Finding {
    let root = if is_on(spec, "driver") {
        spec["hostPaths"]["driverInstallDir"]
            .as_str()
            .unwrap_or(DRIVER_ROOT)
    } else {
        "/"
    };
    about.note(
        CHECK,
        format!("the driver's root is {root}"),
        &format!("install with --set devicePlugin.nvidiaDriverRoot={root}"),
    )
}
