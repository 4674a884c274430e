//! What the checks are made of: facts of a cluster as values, each known or not, and why not.
//!
//! Fed by: [`super::gather`]. Must not: judge.

use std::collections::BTreeMap;

use aliquot_core::NodeName;
use aliquot_core::request::{Resource, ResourceNames};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{Container, Node, Pod};

use super::books::Statement;
use super::finding::Fact;

/// The label of our pods' part, and its values.
pub const PART: &str = "app.kubernetes.io/part-of";
/// The label that says which part.
pub const COMPONENT: &str = "app.kubernetes.io/component";

/// What came of a pod that asks for a GPU and was created as a trial only (`dryRun`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trial {
    /// It would have been created, with this scheduler.
    Admitted(String),
    /// The webhook did not answer, in the API server's words.
    NoAnswer(String),
}

/// What a node's agent answers.
#[derive(Clone, Debug)]
pub struct Agent {
    /// `GET /readyz`.
    pub ready: Fact<()>,
    /// `GET /metrics`.
    pub metrics: Fact<String>,
}

/// Everything that is known.
#[derive(Clone, Debug)]
pub struct Known {
    /// Where our parts are.
    pub namespace: String,
    /// All nodes, or the one that is asked about.
    pub nodes: Fact<Vec<Node>>,
    /// All pods.
    pub pods: Fact<Vec<Pod>>,
    /// The webhook's configuration; nothing where there is none.
    pub hook: Fact<Option<MutatingWebhookConfiguration>>,
    /// What came of the trial.
    pub trial: Fact<Trial>,
    /// The handlers of all runtime classes, by the classes' names.
    pub classes: Fact<BTreeMap<String, String>>,
    /// The runtime class that our agents are given.
    pub agent_class: Fact<Option<String>>,
    /// The names of bindings of admission policies.
    pub fences: Fact<Vec<String>>,
    /// kube-scheduler's configuration; nothing where there is none.
    pub config: Fact<Option<String>>,
    /// Who holds the lease; nothing where nobody does.
    pub leader: Fact<Option<String>>,
    /// The scheduler's books.
    pub books: Fact<Statement>,
    /// What differed between books and pods, again and again.
    pub differences: Fact<Vec<String>>,
    /// The scheduler's metrics.
    pub metrics: Fact<String>,
    /// What the agents answer, by node.
    pub agents: BTreeMap<NodeName, Agent>,
}

/// Whether it is one of ours, of this part.
pub fn is_ours(pod: &Pod, part: &str) -> bool {
    let label = |key| pod.metadata.labels.as_ref()?.get(key).map(String::as_str);
    label(PART) == Some("aliquot") && label(COMPONENT) == Some(part)
}

/// It runs and is ready.
pub fn is_ready(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_deref());
    let ready = |c: &k8s_openapi::api::core::v1::PodCondition| c.type_ == "Ready";
    conditions
        .unwrap_or_default()
        .iter()
        .any(|condition| ready(condition) && condition.status == "True")
}

/// Which of its containers is not ready and why, as far as its status says.
pub fn unready(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let containers = status.container_statuses.iter().flatten();
    let waiting = containers.filter(|one| !one.ready).map(|one| {
        let waiting = one.state.as_ref().and_then(|state| state.waiting.as_ref());
        let reason = waiting.and_then(|waiting| waiting.reason.as_deref());
        let message = waiting.and_then(|waiting| waiting.message.as_deref());
        let said = [reason, message].into_iter().flatten();
        let said: Vec<&str> = said.collect();
        match said[..] {
            [] => one.name.clone(),
            _ => format!("{} ({})", one.name, said.join(": ")),
        }
    });
    let all: Vec<String> = waiting.collect();
    (!all.is_empty()).then(|| all.join(", "))
}

/// Its name.
pub fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

/// All its containers.
pub fn containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    pod.spec.iter().flat_map(|spec| &spec.containers)
}

/// Its containers' commands and arguments.
pub fn words(pod: &Pod) -> impl Iterator<Item = &str> {
    containers(pod).flat_map(|container| {
        let both = [&container.command, &container.args];
        both.into_iter().flatten().flatten().map(String::as_str)
    })
}

/// What is written after `--flag=` or `--flag` in a pod's arguments.
pub fn flag<'a>(pod: &'a Pod, flag: &str) -> Option<&'a str> {
    let mut words = words(pod);
    while let Some(word) = words.next() {
        let Some(rest) = word.strip_prefix(flag) else {
            continue;
        };
        match rest.strip_prefix('=') {
            Some(value) => return Some(value),
            None if rest.is_empty() => return words.next(),
            None => {}
        }
    }
    None
}

/// The flags of the five resources' names.
pub const NAMES: [(Resource, &str); 5] = [
    (Resource::Gpu, "--resource-name"),
    (Resource::Memory, "--resource-mem"),
    (Resource::MemoryPercentage, "--resource-mem-percentage"),
    (Resource::Cores, "--resource-cores"),
    (Resource::Priority, "--resource-priority"),
];

/// The five resources as this part calls them.
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
    fn a_flag_is_read_in_both_forms_and_not_from_a_longer_one() {
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
    fn a_metric_is_summed_over_its_labels_and_absent_where_it_is_not_there() {
        let page =
            "# HELP a b\na_total 2\nb_total{x=\"1\"} 3\nb_total{x=\"2\"} 4\nb_total_more 9\n";
        assert_eq!(metric(page, "a_total"), Some(2.0));
        assert_eq!(metric(page, "b_total"), Some(7.0));
        assert_eq!(metric(page, "c_total"), None);
    }
}
