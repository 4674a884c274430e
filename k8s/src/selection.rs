//! Which nodes a pod's `nodeSelector`, required node affinity and tolerations allow, as kube-scheduler
//! reads them.

use std::cmp::Ordering;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    Node, NodeSelectorRequirement, NodeSelectorTerm, Taint, Toleration,
};
use serde::Serialize;

use crate::disruption::Labels;
use crate::view::PodView;

/// A selection with more texts or bytes is not kept: somebody else wrote it, for each pending pod.
const MOST: (usize, usize) = (64, 4096);

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct NodeSelection {
    /// `nodeSelector`.
    pub labels: Labels,
    /// Of which one is enough; `None` without a required affinity.
    pub terms: Option<Vec<NodeSelectorTerm>>,
    /// For the taints of nodes.
    pub tolerations: Vec<Toleration>,
}

impl NodeSelection {
    /// The selection of this pod; `None` where it says too much about it.
    pub fn read_short(pod: &PodView) -> Option<Self> {
        let selection = Self::read(pod);
        selection.is_short().then_some(selection)
    }

    pub fn read(pod: &PodView) -> Self {
        let affinity = pod.spec.affinity.as_ref();
        let nodes = affinity.and_then(|affinity| affinity.node_affinity.as_ref());
        let required = nodes.and_then(|node| {
            node.required_during_scheduling_ignored_during_execution
                .as_ref()
        });
        Self {
            labels: pod.spec.node_selector.clone().unwrap_or_default(),
            terms: required.map(|required| required.node_selector_terms.clone()),
            tolerations: pod.spec.tolerations.clone().unwrap_or_default(),
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
        let all = self.tolerations.iter();
        let tolerated = all.flat_map(|one| [&one.key, &one.value]).flatten();
        let texts = labels.chain(wanted).chain(tolerated);
        let lengths: Vec<usize> = texts.map(String::len).collect();
        let terms = self.terms.as_ref().map_or(0, Vec::len);
        lengths.len() + terms <= MOST.0 && lengths.iter().sum::<usize>() <= MOST.1
    }

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

    /// Whether it tolerates all of these taints.
    pub fn tolerates(&self, taints: &[String]) -> bool {
        let mut taints = taints.iter();
        taints.all(|taint| self.tolerations.iter().any(|one| covers(one, taint)))
    }
}

/// The taints of a node that keep pods off it, as `key=value:effect`.
pub fn taints(node: &Node) -> Arc<[String]> {
    let spec = node.spec.iter();
    let taints = spec.flat_map(|spec| spec.taints.iter().flatten());
    let keeping_off = taints.filter(|taint| taint.effect != "PreferNoSchedule");
    let text = |taint: &Taint| {
        let value = taint.value.as_deref().unwrap_or_default();
        format!("{}={value}:{}", taint.key, taint.effect)
    };
    keeping_off.map(text).collect()
}

fn covers(toleration: &Toleration, taint: &str) -> bool {
    let (label, effect) = taint.rsplit_once(':').unwrap_or((taint, ""));
    let (key, value) = label.split_once('=').unwrap_or((label, ""));
    let is_any_or = |written: Option<&str>, text: &str| {
        written.is_none_or(|written| written.is_empty() || written == text)
    };
    is_any_or(toleration.effect.as_deref(), effect)
        && is_any_or(toleration.key.as_deref(), key)
        && match toleration.operator.as_deref() {
            None | Some("" | "Equal") => toleration.value.as_deref().unwrap_or_default() == value,
            // `Exists`, or a comparison of a later release.
            Some(_) => true,
        }
}

/// Whether a label with this value, if any, meets a requirement. An invalid one is met by none.
fn meets(operator: &str, values: &[String], value: Option<&str>) -> bool {
    let among = |value: &str| values.iter().any(|one| one == value);
    let compared = || {
        let number = |text: &str| text.parse::<i64>().ok();
        let [limit] = values else { return None };
        Some(number(value?)?.cmp(&number(limit)?))
    };
    match operator {
        "In" => value.is_some_and(among),
        "NotIn" => !value.is_some_and(among),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compared() == Some(Ordering::Greater),
        "Lt" => compared() == Some(Ordering::Less),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn of(spec: &Value) -> Option<NodeSelection> {
        NodeSelection::read_short(&serde_json::from_value(json!({ "spec": spec })).unwrap())
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
    fn tolerates_the_taints_that_kubernetes_would() {
        let node = json!({"spec": {"taints": [
            {"key": "team", "value": "a", "effect": "NoSchedule"},
            {"key": "spot", "effect": "PreferNoSchedule"}]}});
        let taints = taints(&serde_json::from_value(node).unwrap());
        for (toleration, expected) in [
            (json!({"operator": "Exists"}), true),
            (json!({"key": "team", "operator": "Exists"}), true),
            (json!({"key": "team", "value": "a"}), true),
            (json!({"key": "team", "value": "b"}), false),
            (json!({"key": "spot", "operator": "Exists"}), false),
            (json!({"operator": "Exists", "effect": "NoExecute"}), false),
        ] {
            let selection = of(&json!({"tolerations": [toleration]})).unwrap();
            assert_eq!(selection.tolerates(&taints), expected, "{toleration}");
        }
        assert!(!of(&json!({})).unwrap().tolerates(&taints));
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
        let tolerations = vec![json!({"key": "team", "value": "a"}); 100];
        assert_eq!(of(&json!({ "tolerations": tolerations })), None);
    }
}
