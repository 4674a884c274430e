//! What the checks work on: facts about a cluster, each with its value or the reason why it could
//! not be read.

use std::collections::BTreeMap;

use aliquot_core::NodeName;
use aliquot_core::request::{Resource, ResourceNames};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{Container, Node, Pod};

use super::finding::Fact;
use super::ledger::LedgerView;

/// The label that all pods of Aliquot carry.
pub const PART: &str = "app.kubernetes.io/part-of";
/// The label that names the component.
pub const COMPONENT: &str = "app.kubernetes.io/component";

/// The result of creating a pod that requests a GPU with `dryRun`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DryRun {
    /// It would have been created, with this schedulerName.
    Admitted(String),
    /// The webhook did not answer: the API server's message.
    NoAnswer(String),
}

/// What a node's agent answered.
#[derive(Clone, Debug)]
pub struct AgentFacts {
    /// `GET /readyz`.
    pub ready: Fact<()>,
    /// `GET /metrics`.
    pub metrics: Fact<String>,
}

/// Everything that was read.
#[derive(Clone, Debug)]
pub struct ClusterFacts {
    /// Namespace of Aliquot's components.
    pub namespace: String,
    /// All nodes, or the one that is checked.
    pub nodes: Fact<Vec<Node>>,
    /// All pods.
    pub pods: Fact<Vec<Pod>>,
    /// The webhook's configuration, if there is one.
    pub webhook: Fact<Option<MutatingWebhookConfiguration>>,
    /// The result of the dry run.
    pub dry_run: Fact<DryRun>,
    /// The handlers of all runtime classes, by the classes' names.
    pub classes: Fact<BTreeMap<String, String>>,
    /// The runtime class of the agents' pods.
    pub agent_class: Fact<Option<String>>,
    /// The extended resources of `DeviceClasses`, by the classes' names.
    pub device_classes: Fact<BTreeMap<String, String>>,
    /// The namespaces with a label that exempts their pods from admission.
    pub exempt: Fact<Vec<String>>,
    /// The names of the `ValidatingAdmissionPolicyBindings`.
    pub policy_bindings: Fact<Vec<String>>,
    /// The names of the `NetworkPolicies` in the components' namespace.
    pub network_policies: Fact<Vec<String>>,
    /// kube-scheduler's configuration, if there is one.
    pub config: Fact<Option<String>>,
    /// The holder of the lease, if there is one.
    pub leader: Fact<Option<String>>,
    /// The scheduler's ledger.
    pub ledger: Fact<LedgerView>,
    /// Differences between ledger and pods that every sample showed.
    pub differences: Fact<Vec<String>>,
    /// The scheduler's metrics.
    pub metrics: Fact<String>,
    /// What the agents answered, by node.
    pub agents: BTreeMap<NodeName, AgentFacts>,
}

/// Whether the pod is of this component of Aliquot.
pub fn is_ours(pod: &Pod, part: &str) -> bool {
    let label = |key| pod.metadata.labels.as_ref()?.get(key).map(String::as_str);
    label(PART) == Some("aliquot") && label(COMPONENT) == Some(part)
}

/// Whether the pod's condition Ready is True.
pub fn is_ready(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_deref());
    let ready = |c: &k8s_openapi::api::core::v1::PodCondition| c.type_ == "Ready";
    conditions
        .unwrap_or_default()
        .iter()
        .any(|condition| ready(condition) && condition.status == "True")
}

/// Its containers that are not ready, with the reason in their status.
pub fn unready(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let containers = status.container_statuses.iter().flatten();
    let waiting = containers.filter(|one| !one.ready).map(|one| {
        let waiting = one.state.as_ref().and_then(|state| state.waiting.as_ref());
        let reason = waiting.and_then(|waiting| waiting.reason.as_deref());
        let message = waiting.and_then(|waiting| waiting.message.as_deref());
        let texts = [reason, message].into_iter().flatten();
        let texts: Vec<&str> = texts.collect();
        match texts[..] {
            [] => one.name.clone(),
            _ => format!("{} ({})", one.name, texts.join(": ")),
        }
    });
    let all: Vec<String> = waiting.collect();
    (!all.is_empty()).then(|| all.join(", "))
}

/// The pod's name.
pub fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

/// The pod's containers.
pub fn containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    pod.spec.iter().flat_map(|spec| &spec.containers)
}

/// The commands and arguments of the pod's containers.
pub fn arguments(pod: &Pod) -> impl Iterator<Item = &str> {
    containers(pod).flat_map(container_arguments)
}

fn container_arguments(container: &Container) -> impl Iterator<Item = &str> {
    let both = [&container.command, &container.args];
    both.into_iter().flatten().flatten().map(String::as_str)
}

/// The value of `--flag=value` or `--flag value` in a pod's arguments.
pub fn flag<'a>(pod: &'a Pod, flag: &str) -> Option<&'a str> {
    value(arguments(pod), flag)
}

/// The same in one container's arguments.
pub fn container_flag<'a>(container: &'a Container, flag: &str) -> Option<&'a str> {
    value(container_arguments(container), flag)
}

fn value<'a>(mut arguments: impl Iterator<Item = &'a str>, flag: &str) -> Option<&'a str> {
    while let Some(word) = arguments.next() {
        let Some(rest) = word.strip_prefix(flag) else {
            continue;
        };
        match rest.strip_prefix('=') {
            Some(value) => return Some(value),
            None if rest.is_empty() => return arguments.next(),
            None => {}
        }
    }
    None
}

/// The flags that name the five resources.
pub const NAMES: [(Resource, &str); 5] = [
    (Resource::Gpu, "--resource-name"),
    (Resource::Memory, "--resource-mem"),
    (Resource::MemoryPercentage, "--resource-mem-percentage"),
    (Resource::Cores, "--resource-cores"),
    (Resource::Priority, "--resource-priority"),
];

/// The names of the five resources in this component's flags.
pub fn names(pod: &Pod) -> ResourceNames {
    let usual = ResourceNames::default();
    ResourceNames::with(NAMES.map(|(resource, name)| {
        let given = flag(pod, name).unwrap_or_else(|| usual.of(resource));
        (resource, given.to_owned())
    }))
}

/// The value of a metric without labels, or the sum over its labels.
pub fn metric(page: &str, name: &str) -> Option<f64> {
    let of = |line: &str| {
        let rest = line.strip_prefix(name)?;
        let value = rest
            .starts_with([' ', '{'])
            .then(|| rest.rsplit(' ').next());
        value??.parse::<f64>().ok()
    };
    let values: Vec<f64> = page.lines().filter_map(of).collect();
    (!values.is_empty()).then(|| values.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(args: &[&str]) -> Pod {
        let container = json!({"name": "c", "command": ["x"], "args": args});
        serde_json::from_value(json!({"spec": {"containers": [container]}})).unwrap()
    }

    #[test]
    fn reads_flag_in_both_forms() {
        let check = |args: &[&str], expected: Option<&str>| {
            assert_eq!(flag(&pod(args), "--resource-mem"), expected, "{args:?}");
        };
        check(&["--resource-mem=a/b"], Some("a/b"));
        check(&["--resource-mem", "a/b"], Some("a/b"));
        check(&["--resource-mem-percentage=a/b"], None);
        check(&[], None);
        let names = names(&pod(&["--resource-cores=a/cores"]));
        assert_eq!(names.of(Resource::Cores), "a/cores");
        assert_eq!(names.of(Resource::Gpu), "nvidia.com/gpu");
    }

    #[test]
    fn sums_metric_over_labels() {
        let page =
            "# HELP a b\na_total 2\nb_total{x=\"1\"} 3\nb_total{x=\"2\"} 4\nb_total_more 9\n";
        assert_eq!(metric(page, "a_total"), Some(2.0));
        assert_eq!(metric(page, "b_total"), Some(7.0));
        assert_eq!(metric(page, "c_total"), None);
    }
}
