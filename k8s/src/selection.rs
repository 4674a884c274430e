//! Which nodes a pod's `nodeSelector`, required node affinity and tolerations allow, as kube-scheduler
//! reads them.

use k8s_openapi::api::core::v1::{
    Node, NodeSelectorRequirement, NodeSelectorTerm, Pod, Taint, Toleration,
};
use serde::Serialize;

use crate::disruption::{Labels, meets};

/// A selection with more texts or bytes is not kept: somebody else wrote it, for each pending pod.
const MOST: (usize, usize) = (64, 4096);

/// The nodes that a pod selects.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct NodeSelection {
    /// `nodeSelector`.
    pub labels: Labels,
    /// Of which one is enough; `None` without a required affinity.
    pub terms: Option<Vec<NodeSelectorTerm>>,
}

impl NodeSelection {
    /// The selection of this pod; `None` where it selects all nodes, or says too much about it.
    pub fn of(pod: &Pod) -> Option<Self> {
        let selection = Self::read(pod);
        let selects_all = selection.labels.is_empty() && selection.terms.is_none();
        (!selects_all && selection.is_short()).then_some(selection)
    }

    /// All that this pod says.
    pub fn read(pod: &Pod) -> Self {
        let Some(spec) = &pod.spec else {
            return Self::default();
        };
        let affinity = spec
            .affinity
            .as_ref()
            .and_then(|all| all.node_affinity.as_ref());
        let required = affinity.and_then(|node| {
            node.required_during_scheduling_ignored_during_execution
                .as_ref()
        });
        Self {
            labels: spec.node_selector.clone().unwrap_or_default(),
            terms: required.map(|required| required.node_selector_terms.clone()),
        }
    }

    fn is_short(&self) -> bool {
        let labels = self.labels.iter().flat_map(|(key, value)| [key, value]);
        let terms = self.terms.iter().flatten();
        let requirements = terms.flat_map(|term| {
            let fields = term.match_fields.iter().flatten();
            term.match_expressions.iter().flatten().chain(fields)
        });
        let wanted = requirements.flat_map(|one| one.values.iter().flatten().chain([&one.key]));
        let lengths: Vec<usize> = labels.chain(wanted).map(String::len).collect();
        let terms = self.terms.as_ref().map_or(0, Vec::len);
        lengths.len() + terms <= MOST.0 && lengths.iter().sum::<usize>() <= MOST.1
    }

    /// Whether it selects the node of this name with these labels.
    pub fn selects(&self, node: &str, labels: &Labels) -> bool {
        let mut equal = self.labels.iter();
        equal.all(|(key, value)| labels.get(key) == Some(value))
            && self.terms.as_ref().is_none_or(|terms| {
                terms.iter().any(|term| {
                    let mut expressions = term.match_expressions.iter().flatten();
                    let mut fields = term.match_fields.iter().flatten();
                    let is_met = |wanted: &NodeSelectorRequirement, value: Option<&str>| {
                        let values = wanted.values.as_deref().unwrap_or_default();
                        meets(&wanted.operator, values, value)
                    };
                    let label = |key: &String| labels.get(key).map(String::as_str);
                    // An empty term selects nothing.
                    (term.match_expressions.is_some() || term.match_fields.is_some())
                        && expressions.all(|wanted| is_met(wanted, label(&wanted.key)))
                        && fields.all(|wanted| {
                            wanted.key == "metadata.name" && is_met(wanted, Some(node))
                        })
                })
            })
    }
}

/// The effects of taints that keep pods off a node.
const KEEPS_OFF: [&str; 2] = ["NoSchedule", "NoExecute"];
/// The taints that Kubernetes makes every pod tolerate for some minutes, while it runs.
const TOLERATED_BY_ALL: [&str; 2] = [
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
];

/// The taints of a node that keep pods off it.
pub fn taints(node: &Node) -> Vec<Taint> {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let keeping_off = taints.filter(|taint| KEEPS_OFF.contains(&taint.effect.as_str()));
    let timeless = keeping_off.map(|taint| Taint {
        time_added: None,
        ..taint.clone()
    });
    timeless.collect()
}

/// The tolerations of a pod; `None` where it says too much about them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tolerations(Option<Box<[Toleration]>>);

impl Tolerations {
    /// Those of this pod.
    pub fn of(pod: &Pod) -> Self {
        let all = pod.spec.iter();
        let all = all.flat_map(|spec| spec.tolerations.iter().flatten());
        let is_own = |one: &&Toleration| {
            let key = one.key.as_deref().unwrap_or_default();
            !TOLERATED_BY_ALL.contains(&key)
        };
        let own: Box<[Toleration]> = all.filter(is_own).cloned().collect();
        let texts = own.iter().flat_map(|one| [&one.key, &one.value]);
        let bytes: usize = texts.flatten().map(String::len).sum();
        let is_short = own.len() <= MOST.0 && bytes <= MOST.1;
        Self(is_short.then_some(own))
    }

    /// Whether these taints keep the pod off no node, as far as its tolerations are known.
    pub fn cover(&self, taints: &[Taint]) -> bool {
        self.0.as_ref().is_none_or(|own| {
            let mut taints = taints.iter();
            taints.all(|taint| own.iter().any(|one| tolerates(one, taint)))
        })
    }
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let means = |written: Option<&str>, value: &str| {
        let written = written.unwrap_or_default();
        written.is_empty() || written == value
    };
    means(toleration.effect.as_deref(), &taint.effect)
        && means(toleration.key.as_deref(), &taint.key)
        && match toleration.operator.as_deref() {
            None | Some("" | "Equal") => {
                let value = taint.value.as_deref().unwrap_or_default();
                toleration.value.as_deref().unwrap_or_default() == value
            }
            // `Exists`, or a comparison of a later release.
            Some(_) => true,
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn tolerates_the_taints_that_kubernetes_would() {
        let check = |tolerations: Value, expected: bool| {
            let pod = json!({"spec": {"containers": [], "tolerations": tolerations}});
            let pod: Pod = serde_json::from_value(pod).unwrap();
            let node = json!({"spec": {"taints": [
                {"key": "team", "value": "a", "effect": "NoSchedule"},
                {"key": "spot", "effect": "PreferNoSchedule"}]}});
            let node: Node = serde_json::from_value(node).unwrap();
            let covered = Tolerations::of(&pod).cover(&taints(&node));
            assert_eq!(covered, expected, "{tolerations}");
        };
        check(json!([]), false);
        check(json!([{"operator": "Exists"}]), true);
        check(json!([{"key": "team", "operator": "Exists"}]), true);
        check(json!([{"key": "team", "value": "a"}]), true);
        check(json!([{"key": "team", "value": "b"}]), false);
        let other_effect = json!([{"key": "team", "operator": "Exists", "effect": "NoExecute"}]);
        check(other_effect, false);
        let of_all = json!([{"key": TOLERATED_BY_ALL[0], "operator": "Exists"}]);
        check(of_all, false);
        let long = json!([{"key": "k".repeat(5000), "operator": "Exists"}]);
        check(long, true);
    }

    fn of(spec: &Value) -> Option<NodeSelection> {
        let mut spec = spec.clone();
        spec["containers"] = json!([]);
        NodeSelection::of(&serde_json::from_value(json!({ "spec": spec })).unwrap())
    }

    fn required(terms: &Value) -> Value {
        json!({"affinity": {"nodeAffinity":
            {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}})
    }

    /// Whether a node `n` with `pool: a` and `memory: 80` is selected.
    fn check(spec: &Value, expected: bool) {
        let labels = [("pool", "a"), ("memory", "80")];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let selected = of(spec).is_none_or(|selection| selection.selects("n", &labels.into()));
        assert_eq!(selected, expected, "{spec}");
    }

    #[test]
    fn selects_the_nodes_that_kubernetes_would() {
        check(&json!({}), true);
        check(&json!({"nodeSelector": {"pool": "a"}}), true);
        check(&json!({"nodeSelector": {"pool": "a", "zone": "z"}}), false);
        for (key, operator, values, expected) in [
            ("pool", "In", vec!["b", "a"], true),
            ("pool", "In", vec!["b"], false),
            ("zone", "NotIn", vec!["z"], true),
            ("pool", "NotIn", vec!["a"], false),
            ("pool", "Exists", vec![], true),
            ("pool", "DoesNotExist", vec![], false),
            ("memory", "Gt", vec!["79"], true),
            ("memory", "Gt", vec!["80"], false),
            ("memory", "Lt", vec!["81"], true),
            ("pool", "Lt", vec!["81"], false),
            ("pool", "Resembles", vec!["a"], false),
        ] {
            let wanted = json!({"key": key, "operator": operator, "values": values});
            let term = json!([{"matchExpressions": [wanted]}]);
            check(&required(&term), expected);
        }
        let named = |name: &str| {
            json!({"matchFields": [
            {"key": "metadata.name", "operator": "In", "values": [name]}]})
        };
        check(&required(&json!([named("m")])), false);
        check(&required(&json!([named("m"), named("n")])), true);
        check(&required(&json!([{}])), false);
        check(&required(&json!([])), false);
    }

    #[test]
    fn keeps_no_long_selection() {
        let values: Vec<String> = (0..100).map(|number| number.to_string()).collect();
        for (key, values) in [("pool", values), (&*"k".repeat(5000), vec![])] {
            let wanted = json!({"key": key, "operator": "In", "values": values});
            assert_eq!(
                of(&required(&json!([{"matchExpressions": [wanted]}]))),
                None
            );
        }
        let terms = vec![json!({}); 100];
        assert_eq!(of(&required(&json!(terms))), None);
    }
}
