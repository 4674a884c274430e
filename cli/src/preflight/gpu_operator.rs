//! The settings of NVIDIA's GPU Operator that concern Aliquot, in its `ClusterPolicy`.

use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::{DynamicObject, GroupVersionKind};
use serde_json::Value;

use super::gather::Workload;
use super::{is_ours, label};
use crate::components::node_name;
use crate::doctor::facts::Fact;
use crate::doctor::finding::{About, Checked, Finding, note, ok, problem, warning};
use crate::doctor::gather::all_of_kind;
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
/// How the operator labels a node that has a driver of its own and gets no driver container.
const OWN_DRIVER: (&str, &str) = ("nvidia.com/gpu.deploy.driver", "pre-installed");

/// The validator's `DaemonSet`, and its container that may start a pod, by this variable.
const VALIDATOR: &str = "nvidia-operator-validator";
const PLUGIN_VALIDATION: &str = "plugin-validation";
const WITH_WORKLOAD: &str = "WITH_WORKLOAD";

/// The policies; a cluster without the operator has none.
pub(super) async fn policies(client: &Client) -> Fact<Vec<DynamicObject>> {
    let kind = GroupVersionKind::gvk("nvidia.com", "v1", "ClusterPolicy");
    all_of_kind(client, &kind, "clusterpolicies").await
}

/// What each policy means for an installation.
pub(super) fn checks(
    policies: &Fact<Vec<DynamicObject>>,
    nodes: &[Node],
    workloads: &[Workload],
) -> Vec<Finding> {
    let cluster = |checked| vec![About::cluster().finding(CHECK, checked)];
    let policies = match policies {
        Err(why) => return cluster(Err(why.clone())),
        Ok(policies) if policies.is_empty() => {
            return cluster(ok("there is no ClusterPolicy of GPU Operator"));
        }
        Ok(policies) => policies,
    };
    let mut found = Vec::new();
    for policy in policies {
        let name = policy.metadata.name.as_deref().unwrap_or_default();
        let about = About(format!("ClusterPolicy {name}"));
        let verdicts = of_policy(&policy.data["spec"], nodes, workloads).into_iter();
        found.extend(verdicts.map(|checked| about.finding(CHECK, checked)));
    }
    found
}

/// Whether a part is on, as it is where its section does not say.
fn is_on(spec: &Value, part: &str) -> bool {
    spec[part]["enabled"] != false
}

/// Whether the operator has a part on the node: it labels the nodes where one belongs, so that those without operands
/// and, for MIG manager, those whose GPUs have no MIG have no such label.
fn is_deployed(node: &Node, key: &str) -> bool {
    label(node, key).is_some_and(|value| value != "false")
}

fn of_policy(spec: &Value, nodes: &[Node], workloads: &[Workload]) -> Vec<Checked> {
    let mut found: Vec<Checked> = REPLACED
        .into_iter()
        .map(|part| replaced(spec, nodes, part))
        .collect();
    found.extend([validator(spec, workloads), driver(spec, nodes)]);
    if spec["cdi"]["enabled"] == false {
        found.push(warning(
            "cdi.enabled is false: NVIDIA's runtime is the default one, and opens GPUs to every image that sets NVIDIA_VISIBLE_DEVICES",
            "set cdi.enabled=true, or close that on each node (docs/guides/container-runtime.md#nvidias-runtime)",
        ));
    }
    found
}

/// A part that must not run beside the agent.
fn replaced(spec: &Value, nodes: &[Node], (part, section, key): (&str, &str, &str)) -> Checked {
    if !is_on(spec, section) {
        return ok(format!("{part} is disabled ({section}.enabled)"));
    }
    let runs = nodes
        .iter()
        .filter(|node| is_ours(node) && is_deployed(node, key));
    let names: Vec<&str> = runs.map(node_name).collect();
    if names.is_empty() {
        return note(
            format!(
                "{section}.enabled: {part} runs on every node with GPUs that has no label {key}=false"
            ),
            format!("kubectl label node NODE {key}=false, before gpu=on"),
        );
    }
    problem(
        format!(
            "{section}.enabled: {part} also runs on nodes that have the label gpu=on: {}",
            some(names)
        ),
        format!("kubectl label node NODE {key}=false, or set {section}.enabled=false"),
    )
}

/// The validator starts no pod that asks for a GPU and names its node. Its `DaemonSet` says what holds where the policy
/// does not: the operator's own default is false since 25.10, and was true before.
fn validator(spec: &Value, workloads: &[Workload]) -> Checked {
    let made = workloads
        .iter()
        .filter(|one| one.kind == "DaemonSet" && one.name == VALIDATOR)
        .filter_map(|one| one.pod.spec.as_ref())
        .flat_map(|pod| pod.init_containers.iter().flatten())
        .filter(|container| container.name == PLUGIN_VALIDATION)
        .flat_map(|container| container.env.iter().flatten())
        .find(|variable| variable.name == WITH_WORKLOAD)
        .and_then(|variable| variable.value.as_deref());
    let list = spec["validator"]["plugin"]["env"].as_array();
    let mut variables = list.into_iter().flatten();
    let written = variables
        .find(|one| one["name"] == WITH_WORKLOAD)
        .and_then(|one| one["value"].as_str());
    if made.or(written) == Some("false") {
        return ok("the validator starts no pod that asks for a GPU");
    }
    warning(
        "the validator starts a pod that asks for nvidia.com/gpu and names its node: it never ends on a node of Aliquot's, and other parts of the operator wait for it",
        "set WITH_WORKLOAD to \"false\" under validator.plugin.env",
    )
}

/// Where the agent finds the driver.
fn driver(spec: &Value, nodes: &[Node]) -> Checked {
    let installed = spec["hostPaths"]["driverInstallDir"].as_str();
    let root = installed.unwrap_or(DRIVER_ROOT);
    let with_root = |root: &str| {
        note(
            format!("the driver's root is {root}"),
            format!("install with --set devicePlugin.nvidiaDriverRoot={root}"),
        )
    };
    let (own, others): (Vec<&Node>, Vec<&Node>) = nodes
        .iter()
        .filter(|node| is_deployed(node, OWN_DRIVER.0))
        .partition(|node| label(node, OWN_DRIVER.0) == Some(OWN_DRIVER.1));
    if !is_on(spec, "driver") {
        // Somebody else installs it: into another directory only if the policy names one, as on GKE.
        return with_root(if root == DRIVER_ROOT { "/" } else { root });
    }
    if !own.is_empty() && others.is_empty() {
        return with_root("/");
    }
    if own.is_empty() {
        return with_root(root);
    }
    let names = own.into_iter().map(node_name);
    warning(
        format!(
            "the driver's root is / on nodes that had a driver before the operator: {}; it is {root} on the others, and one installation of Aliquot has one root",
            some(names)
        ),
        "set devicePlugin.nvidiaDriverRoot to that of the nodes with the label gpu=on, and leave the others without the label",
    )
}
