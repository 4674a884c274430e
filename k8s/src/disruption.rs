//! What preemption needs to know of pods and disruption budgets.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::core::{Selector, SelectorExt as _};

use crate::view::{ConditionView, PodView};

/// `terminationGracePeriodSeconds` of a pod that sets none.
const GRACE: i64 = 30;

pub type Labels = BTreeMap<String, String>;

/// A `PodDisruptionBudget` as preemption sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Budget {
    pub namespace: String,
    /// How many of its pods may be evicted now.
    pub allowed: u32,
    /// Pods that it counts as evicted already, by name.
    disrupted: BTreeSet<String>,
    /// An invalid one selects nothing.
    selector: Option<Selector>,
}

impl Budget {
    pub fn read(budget: &PodDisruptionBudget) -> Self {
        let status = budget.status.as_ref();
        let spec = budget.spec.as_ref();
        // Until its controller has observed it, it allows nothing.
        let observed =
            status.and_then(|status| status.observed_generation) >= budget.metadata.generation;
        let allowed = status
            .filter(|_| observed)
            .map_or(0, |status| status.disruptions_allowed);
        let disrupted = status.and_then(|status| status.disrupted_pods.as_ref());
        Self {
            namespace: budget.metadata.namespace.clone().unwrap_or_default(),
            allowed: u32::try_from(allowed).unwrap_or(0),
            disrupted: disrupted
                .into_iter()
                .flatten()
                .map(|(name, _)| name.clone())
                .collect(),
            selector: spec.and_then(|spec| Selector::try_from(spec.selector.clone()?).ok()),
        }
    }

    /// Whether the eviction of this pod counts against it.
    pub fn covers(&self, namespace: &str, name: &str, labels: &Labels) -> bool {
        self.namespace == namespace
            && !self.disrupted.contains(name)
            && self
                .selector
                .as_ref()
                .is_some_and(|selector| selector.matches(labels))
    }
}

/// `spec.priority`; 0 if unset.
pub fn priority(pod: &PodView) -> i32 {
    pod.spec.priority.unwrap_or(0)
}

/// Whether `spec.preemptionPolicy` allows it to preempt.
pub fn may_preempt(pod: &PodView) -> bool {
    pod.spec.preemption_policy.as_deref() != Some("Never")
}

fn condition<'p>(pod: &'p PodView, kind: &str, status: &str) -> Option<&'p ConditionView> {
    let mut conditions = pod.status.conditions.iter().flatten();
    conditions.find(|one| one.kind == kind && one.status == status)
}

/// kube-scheduler's report why it has not placed the pod (`PodScheduled` is False).
pub fn not_scheduled(pod: &PodView) -> Option<&ConditionView> {
    condition(pod, "PodScheduled", "False")
}

/// Whether kube-scheduler reported that no node can take it.
pub fn unschedulable(pod: &PodView) -> bool {
    not_scheduled(pod).is_some_and(|found| found.reason.as_deref() == Some("Unschedulable"))
}

/// The node that kube-scheduler nominated for it (`status.nominatedNodeName`).
pub fn nominated(pod: &PodView) -> Option<&str> {
    let name = pod.status.nominated_node_name.as_deref()?;
    (!name.is_empty()).then_some(name)
}

/// When it started, in seconds since 1970; before that, when it was created.
pub fn started(pod: &PodView) -> i64 {
    let started = pod.status.start_time.as_ref();
    let time = started.or(pod.metadata.creation_timestamp.as_ref());
    time.map_or(0, |time| time.0.as_second())
}

/// Its termination grace period in seconds.
pub fn grace_period(pod: &PodView) -> u64 {
    let grace = pod.spec.termination_grace_period_seconds;
    u64::try_from(grace.unwrap_or(GRACE)).unwrap_or(0)
}

/// `metadata.deletionTimestamp`, in seconds since 1970; `None` if it is not terminating.
pub fn deletion_deadline(pod: &PodView) -> Option<i64> {
    let time = pod.metadata.deletion_timestamp.as_ref()?;
    Some(time.0.as_second())
}

pub fn preempted_by_kube_scheduler(pod: &PodView) -> bool {
    condition(pod, "DisruptionTarget", "True")
        .is_some_and(|found| found.reason.as_deref() == Some("PreemptionByScheduler"))
}

/// Whether budgets ignore it because it does not run yet.
pub fn ignored_by_budgets(pod: &PodView) -> bool {
    let phase = pod.status.phase.as_deref();
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
        let budget = Budget::read(&serde_json::from_value(budget).unwrap());
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
    fn budget_covers_pods_its_selector_matches() {
        let expression = |operator: &str, value: &str| json!({"matchExpressions": [{"key": "app", "operator": operator, "values": [value]}]});
        let web = || json!({"app": "web", "tier": "1"});
        check(&json!(null), web(), false);
        check(&json!({}), json!({}), true);
        check(&json!({"matchLabels": {"app": "web"}}), web(), true);
        check(
            &json!({"matchLabels": {"app": "web", "tier": "2"}}),
            web(),
            false,
        );
        check(&expression("In", "web"), web(), true);
        check(&expression("In", "db"), web(), false);
        check(&expression("Resembles", "web"), web(), false);
    }

    #[test]
    fn unobserved_budget_allows_no_disruption() {
        let budget = json!({
            "metadata": {"namespace": "d", "generation": 2},
            "status": {"disruptionsAllowed": 5, "currentHealthy": 1, "desiredHealthy": 1,
                "expectedPods": 1, "observedGeneration": 1},
        });
        assert_eq!(
            Budget::read(&serde_json::from_value(budget).unwrap()).allowed,
            0
        );
    }
}
