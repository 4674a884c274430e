//! What preemption must know of bound pods, and the disruption budgets.
//!
//! Kept for pods that hold a share, and for those that kube-scheduler preempts.
//! Fed by: the watches of pods and of budgets.
//! Must not: say what a pod holds; the ledger does.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use aliquot_core::ledger::Held;
use aliquot_core::{NodeName, PodUid};
use aliquot_k8s::disruption::{self, Budget, Labels, MIRROR};
use aliquot_k8s::event::PodRef;
use aliquot_k8s::pod;
use aliquot_k8s::watch::Index;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use parking_lot::RwLock;

use crate::waiting::reference;

/// A bound pod.
#[derive(Clone, Debug)]
pub struct Tenant {
    /// Which.
    pub pod: PodRef,
    /// Where.
    pub node: NodeName,
    /// `spec.priority`.
    pub priority: i32,
    /// When it started, in seconds since 1970.
    pub started: i64,
    /// Seconds that it may take to end.
    pub grace: u64,
    /// By when it has to have ended, in seconds since 1970.
    pub ending: Option<i64>,
    /// kube-scheduler preempts it.
    kube: bool,
    /// The kubelet owns it: an eviction would not end it.
    fixed: bool,
    beyond_budgets: bool,
    labels: Arc<Labels>,
}

/// What is to be known of a pod bound to `node`; `None` for one that holds no
/// share, unless kube-scheduler preempts it.
pub fn read(pod: &Pod, node: &NodeName, held: &Held) -> Option<Box<Tenant>> {
    let ending = disruption::ending(pod);
    let kube = ending.is_some() && disruption::preempted_by_kube_scheduler(pod);
    if *held == Held::nothing() && !kube {
        return None;
    }
    Some(Box::new(Tenant {
        pod: reference(pod),
        node: node.clone(),
        priority: disruption::priority(pod),
        started: disruption::started(pod),
        grace: disruption::grace(pod),
        ending,
        kube,
        fixed: pod::annotation(pod, MIRROR).is_some(),
        beyond_budgets: disruption::beyond_budgets(pod),
        labels: Arc::new(pod.metadata.labels.clone().unwrap_or_default()),
    }))
}

impl Tenant {
    /// It can be asked to end.
    pub fn can_end(&self) -> bool {
        !self.fixed && self.ending.is_none()
    }
}

/// Bound pods and budgets.
#[derive(Debug, Default)]
pub struct Tenants {
    all: HashMap<PodUid, Box<Tenant>>,
    /// How many have each priority.
    priorities: BTreeMap<i32, usize>,
    /// Those that kube-scheduler preempts.
    kube: HashSet<PodUid>,
    /// Equal labels are kept once.
    labels: HashSet<Arc<Labels>>,
    budgets: BTreeMap<(String, String), Budget>,
}

impl Tenants {
    /// The watch shows this of a pod; nothing of one that is not bound, or gone.
    pub fn put(&mut self, uid: &PodUid, tenant: Option<Box<Tenant>>) {
        if !self.all.is_empty() {
            self.remove(uid);
        }
        let Some(mut tenant) = tenant else { return };
        tenant.labels = self.shared(tenant.labels);
        *self.priorities.entry(tenant.priority).or_default() += 1;
        if tenant.kube {
            self.kube.insert(uid.clone());
        }
        self.all.insert(uid.clone(), tenant);
    }

    fn remove(&mut self, uid: &PodUid) {
        let Some(old) = self.all.remove(uid) else {
            return;
        };
        self.kube.remove(uid);
        if let Some(count) = self.priorities.get_mut(&old.priority) {
            *count -= 1;
            if *count == 0 {
                self.priorities.remove(&old.priority);
            }
        }
        // The set and this pod were the only ones that knew them.
        if Arc::strong_count(&old.labels) == 2 {
            self.labels.remove(&old.labels);
        }
    }

    /// Keeps only these pods.
    pub fn retain(&mut self, listed: impl Fn(&PodUid) -> bool) {
        let gone = self.all.keys().filter(|uid| !listed(uid)).cloned();
        for uid in gone.collect::<Vec<_>>() {
            self.remove(&uid);
        }
    }

    /// The pod, if it is known.
    pub fn get(&self, uid: &PodUid) -> Option<&Tenant> {
        self.all.get(uid).map(|tenant| &**tenant)
    }

    /// The lowest priority that any of them has.
    pub fn lowest(&self) -> Option<i32> {
        self.priorities.first_key_value().map(|(lowest, _)| *lowest)
    }

    /// Where pods end because kube-scheduler preempts them.
    pub fn kube_nodes(&self) -> impl Iterator<Item = &NodeName> {
        let ending = self.kube.iter().filter_map(|uid| self.all.get(uid));
        ending.map(|tenant| &tenant.node)
    }

    /// How many evictions each budget allows, and which budgets a pod counts against.
    pub fn budgets(&self) -> (Vec<u32>, impl Fn(&Tenant) -> Vec<usize>) {
        let allowed = self.budgets.values().map(|budget| budget.allowed);
        let covering = |tenant: &Tenant| {
            if tenant.beyond_budgets {
                return Vec::new();
            }
            let pod = &tenant.pod;
            let covers = |b: &Budget| b.covers(&pod.namespace, &pod.name, &tenant.labels);
            let all = self.budgets.values().enumerate();
            all.filter(|(_, budget)| covers(budget))
                .map(|(at, _)| at)
                .collect()
        };
        (allowed.collect(), covering)
    }

    fn shared(&mut self, labels: Arc<Labels>) -> Arc<Labels> {
        if let Some(known) = self.labels.get(&labels) {
            return known.clone();
        }
        self.labels.insert(labels.clone());
        labels
    }
}

/// The budgets' watch writes here.
#[derive(Debug, Default)]
pub struct Shared(pub RwLock<Tenants>);

fn key(budget: &PodDisruptionBudget) -> (String, String) {
    let meta = &budget.metadata;
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    (text(&meta.namespace), text(&meta.name))
}

impl Index<PodDisruptionBudget> for Shared {
    type Entry = ((String, String), Budget);

    fn entry(&self, budget: PodDisruptionBudget) -> Self::Entry {
        (key(&budget), Budget::of(&budget))
    }

    fn apply(&self, budget: PodDisruptionBudget) {
        let (key, made) = self.entry(budget);
        self.0.write().budgets.insert(key, made);
    }

    fn delete(&self, budget: PodDisruptionBudget) {
        self.0.write().budgets.remove(&key(&budget));
    }

    fn replace(&self, budgets: Vec<Self::Entry>) {
        self.0.write().budgets = budgets.into_iter().collect();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, priority: i32, app: &str) -> Pod {
        let pod = json!({
            "metadata": {"name": name, "namespace": "d", "uid": name, "labels": {"app": app}},
            "spec": {"nodeName": "n", "priority": priority, "containers": []},
            "status": {"phase": "Running"},
        });
        serde_json::from_value(pod).unwrap()
    }

    fn put(tenants: &mut Tenants, pod: &Pod, holds: bool) {
        let held = if holds {
            Held::Unreadable
        } else {
            Held::nothing()
        };
        tenants.put(&pod::uid(pod), read(pod, &"n".into(), &held));
    }

    #[test]
    fn labels_are_kept_once_and_not_longer_than_their_pods() {
        let mut tenants = Tenants::default();
        for name in ["a", "b"] {
            put(&mut tenants, &pod(name, 5, "web"), true);
        }
        put(&mut tenants, &pod("c", 1, "db"), true);
        assert_eq!((tenants.labels.len(), tenants.lowest()), (2, Some(1)));
        put(&mut tenants, &pod("c", 1, "db"), false);
        assert_eq!((tenants.labels.len(), tenants.lowest()), (1, Some(5)));
        tenants.retain(|uid| uid.as_str() == "b");
        assert_eq!((tenants.labels.len(), tenants.lowest()), (1, Some(5)));
        put(&mut tenants, &pod("b", 5, "web"), true);
        tenants.put(&"b".into(), None);
        assert_eq!((tenants.labels.len(), tenants.lowest()), (0, None));
    }

    #[test]
    fn a_pod_counts_against_the_budgets_that_select_it_once_it_runs() {
        let shared = Shared::default();
        let budget = json!({
            "metadata": {"name": "b", "namespace": "d", "generation": 1},
            "spec": {"selector": {"matchLabels": {"app": "web"}}},
            "status": {"disruptionsAllowed": 3, "currentHealthy": 4, "desiredHealthy": 1,
                "expectedPods": 4, "observedGeneration": 1},
        });
        Index::apply(
            &shared,
            serde_json::from_value::<PodDisruptionBudget>(budget).unwrap(),
        );
        let mut starting = pod("starting", 1, "web");
        starting.status.as_mut().unwrap().phase = Some("Pending".to_owned());
        let mut tenants = shared.0.write();
        for pod in [pod("web", 1, "web"), pod("db", 1, "db"), starting] {
            put(&mut tenants, &pod, true);
        }
        let (allowed, covering) = tenants.budgets();
        assert_eq!(allowed, [3]);
        for (name, expected) in [("web", vec![0]), ("db", vec![]), ("starting", vec![])] {
            assert_eq!(
                covering(tenants.get(&name.into()).unwrap()),
                expected,
                "{name}"
            );
        }
    }
}
