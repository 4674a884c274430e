//! What decides whom preemption may end, and whether a pod may preempt: disruption
//! budgets, and what pods say of themselves.
//!
//! Fed by: watches. Must not: choose; `aliquot_core::preemption` does.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// The kubelet's mark on the API object of a static pod.
pub const MIRROR: &str = "kubernetes.io/config.mirror";
/// `terminationGracePeriodSeconds` of a pod that says none.
const GRACE: i64 = 30;

/// A pod's labels.
pub type Labels = BTreeMap<String, String>;

/// A `PodDisruptionBudget` as preemption sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Budget {
    /// Its namespace.
    pub namespace: String,
    /// How many of its pods may be evicted now.
    pub allowed: u32,
    /// Pods that it counts as evicted already, by name.
    disrupted: BTreeSet<String>,
    selector: Option<LabelSelector>,
}

impl Budget {
    /// What the object says.
    pub fn of(budget: &PodDisruptionBudget) -> Self {
        let status = budget.status.as_ref();
        let spec = budget.spec.as_ref();
        // Until its controller has looked at it, it allows nothing.
        let seen =
            status.and_then(|status| status.observed_generation) >= budget.metadata.generation;
        let allowed = status.map_or(0, |status| status.disruptions_allowed);
        let allowed = if seen { allowed } else { 0 };
        let disrupted = status.and_then(|status| status.disrupted_pods.as_ref());
        Self {
            namespace: budget.metadata.namespace.clone().unwrap_or_default(),
            allowed: u32::try_from(allowed).unwrap_or(0),
            disrupted: disrupted
                .into_iter()
                .flatten()
                .map(|(name, _)| name.clone())
                .collect(),
            selector: spec.and_then(|spec| spec.selector.clone()),
        }
    }

    /// The end of this pod counts against it.
    pub fn covers(&self, namespace: &str, name: &str, labels: &Labels) -> bool {
        self.namespace == namespace
            && !self.disrupted.contains(name)
            && self
                .selector
                .as_ref()
                .is_some_and(|selector| selects(selector, labels))
    }
}

/// Kubernetes' rule for label selectors. One that cannot be read selects nothing.
fn selects(selector: &LabelSelector, labels: &Labels) -> bool {
    let equal = selector.match_labels.iter().flatten();
    let mut equal = equal.map(|(key, value)| labels.get(key) == Some(value));
    let expressions = selector.match_expressions.iter().flatten();
    let mut expressions = expressions.map(|wanted| {
        let value = labels.get(&wanted.key);
        let among = |value: &String| wanted.values.iter().flatten().any(|v| v == value);
        match wanted.operator.as_str() {
            "In" => value.is_some_and(among),
            "NotIn" => !value.is_some_and(among),
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            _ => false,
        }
    });
    equal.all(|holds| holds) && expressions.all(|holds| holds)
}

/// `spec.priority`; 0 where there is none.
pub fn priority(pod: &Pod) -> i32 {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.priority)
        .unwrap_or(0)
}

/// `spec.preemptionPolicy` does not forbid it.
pub fn may_preempt(pod: &Pod) -> bool {
    let policy = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.preemption_policy.as_deref());
    policy != Some("Never")
}

/// kube-scheduler has said that no node can take it (`PodScheduled` is False).
pub fn unschedulable(pod: &Pod) -> bool {
    let conditions = pod
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    conditions
        .filter(|condition| condition.type_ == "PodScheduled" && condition.status == "False")
        .any(|condition| condition.reason.as_deref() == Some("Unschedulable"))
}

/// Where kube-scheduler makes room for it (`status.nominatedNodeName`).
pub fn nominated(pod: &Pod) -> Option<&str> {
    let name = pod.status.as_ref()?.nominated_node_name.as_deref()?;
    (!name.is_empty()).then_some(name)
}

/// When it started, in seconds since 1970; its creation before it has.
pub fn started(pod: &Pod) -> i64 {
    let started = pod
        .status
        .as_ref()
        .and_then(|status| status.start_time.as_ref());
    let time = started.or(pod.metadata.creation_timestamp.as_ref());
    time.map_or(0, |time| time.0.as_second())
}

/// Seconds that it may take to end.
pub fn grace(pod: &Pod) -> u64 {
    let spec = pod.spec.as_ref();
    let grace = spec.and_then(|spec| spec.termination_grace_period_seconds);
    u64::try_from(grace.unwrap_or(GRACE)).unwrap_or(0)
}

/// By when it is to have ended, in seconds since 1970; `None` while it is not ending.
pub fn ending(pod: &Pod) -> Option<i64> {
    let time = pod.metadata.deletion_timestamp.as_ref()?;
    Some(time.0.as_second())
}

/// It ends because kube-scheduler preempts it.
pub fn preempted_by_kube_scheduler(pod: &Pod) -> bool {
    let conditions = pod
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    conditions
        .filter(|condition| condition.type_ == "DisruptionTarget" && condition.status == "True")
        .any(|condition| condition.reason.as_deref() == Some("PreemptionByScheduler"))
}

/// A budget says nothing about it: it is not running yet.
pub fn beyond_budgets(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    phase.is_none_or(|phase| phase == "Pending")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn check(selector: &Value, labels: Value, expected: bool) {
        let budget = json!({
            "metadata": {"namespace": "d", "generation": 1},
            "spec": {"selector": selector},
            "status": {"disruptionsAllowed": 1, "currentHealthy": 1, "desiredHealthy": 1,
                "expectedPods": 1, "observedGeneration": 1,
                "disruptedPods": {"evicted": "2026-11-21T00:00:00Z"}},
        });
        let budget = Budget::of(&serde_json::from_value(budget).unwrap());
        let labels = serde_json::from_value(labels).unwrap();
        assert_eq!(budget.allowed, 1);
        assert_eq!(
            budget.covers("d", "p", &labels),
            expected,
            "{selector} {labels:?}"
        );
        assert!(!budget.covers("other", "p", &labels) && !budget.covers("d", "evicted", &labels));
    }

    #[test]
    fn a_budget_covers_the_pods_that_its_selector_selects() {
        let expression = |operator: &str, values: &[&str]| json!({"matchExpressions": [{"key": "app", "operator": operator, "values": values}]});
        let web = || json!({"app": "web", "tier": "1"});
        check(&json!(null), web(), false);
        check(&json!({}), json!({}), true);
        check(&json!({"matchLabels": {"app": "web"}}), web(), true);
        check(
            &json!({"matchLabels": {"app": "web", "tier": "2"}}),
            web(),
            false,
        );
        check(&expression("In", &["db", "web"]), web(), true);
        check(&expression("In", &["db"]), web(), false);
        check(&expression("NotIn", &["db"]), web(), true);
        check(&expression("NotIn", &["db"]), json!({}), true);
        check(&expression("NotIn", &["web"]), web(), false);
        check(&expression("Exists", &[]), web(), true);
        check(&expression("DoesNotExist", &[]), web(), false);
        check(&expression("Resembles", &["web"]), web(), false);
    }

    #[test]
    fn a_budget_that_its_controller_has_not_seen_allows_nothing() {
        let budget = json!({
            "metadata": {"namespace": "d", "generation": 2},
            "status": {"disruptionsAllowed": 5, "currentHealthy": 1, "desiredHealthy": 1,
                "expectedPods": 1, "observedGeneration": 1},
        });
        assert_eq!(
            Budget::of(&serde_json::from_value(budget).unwrap()).allowed,
            0
        );
    }
}
