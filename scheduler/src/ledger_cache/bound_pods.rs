//! What preemption needs of bound pods, and the disruption budgets.
//!
//! Only for pods with a share, and for those that kube-scheduler preempts. Their allocations are in
//! the ledger.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use aliquot_core::usage::AllocatedUse;
use aliquot_core::{NodeName, PodUid};
use aliquot_k8s::disruption::{self, Budget, Labels};
use aliquot_k8s::event::PodRef;
use aliquot_k8s::view::PodView;
use aliquot_k8s::watch::Index;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;

use super::LedgerCache;

#[derive(Clone, Debug)]
pub struct BoundPod {
    pub pod: PodRef,
    /// `spec.priority`.
    pub priority: i32,
    /// When it started, in seconds since 1970.
    pub started: i64,
    /// Its termination grace period, in seconds.
    pub grace: u64,
    /// By when it has to be terminated, in seconds since 1970, where it is terminating.
    pub terminating: Option<i64>,
    /// Its node, if kube-scheduler preempts it.
    kube: Option<NodeName>,
    /// A mirror pod: the kubelet owns it, and an eviction has no effect.
    mirror: bool,
    beyond_budgets: bool,
    labels: Arc<Labels>,
}

/// Reads a pod bound to `node`; `None` for one without a share, unless kube-scheduler preempts it.
pub fn read(pod: &PodView, node: &NodeName, allocated: &AllocatedUse) -> Option<Box<BoundPod>> {
    let terminating = disruption::deletion_deadline(pod);
    let kube = terminating.is_some() && disruption::preempted_by_kube_scheduler(pod);
    if *allocated == AllocatedUse::nothing() && !kube {
        return None;
    }
    Some(Box::new(BoundPod {
        pod: pod.reference(),
        priority: disruption::priority(pod),
        started: disruption::started(pod),
        grace: disruption::grace_period(pod),
        terminating,
        kube: kube.then(|| node.clone()),
        mirror: pod.is_mirror(),
        beyond_budgets: disruption::ignored_by_budgets(pod),
        labels: Arc::new(pod.labels().cloned().unwrap_or_default()),
    }))
}

impl BoundPod {
    pub fn can_be_evicted(&self) -> bool {
        !self.mirror && self.terminating.is_none()
    }
}

#[derive(Debug, Default)]
pub struct BoundPods {
    all: HashMap<PodUid, Box<BoundPod>>,
    /// How many have each priority.
    priorities: BTreeMap<i32, usize>,
    /// Those that kube-scheduler preempts.
    kube: HashSet<PodUid>,
    /// Equal labels are shared.
    labels: HashSet<Arc<Labels>>,
    budgets: Budgets,
}

/// The disruption budgets at one moment: a clone is a snapshot.
#[derive(Clone, Debug, Default)]
pub struct Budgets(Arc<BTreeMap<(String, String), Budget>>);

impl Budgets {
    /// How many evictions each budget allows.
    pub fn allowed_evictions(&self) -> Vec<u32> {
        self.0.values().map(|budget| budget.allowed).collect()
    }

    /// The budgets that a pod counts against, as indices in [`Self::allowed_evictions`].
    pub fn of(&self, bound_pod: &BoundPod) -> Vec<usize> {
        if bound_pod.beyond_budgets {
            return Vec::new();
        }
        let pod = &bound_pod.pod;
        let covers = |b: &Budget| b.covers(&pod.namespace, &pod.name, &bound_pod.labels);
        let all = self.0.values().enumerate();
        all.filter(|(_, budget)| covers(budget))
            .map(|(at, _)| at)
            .collect()
    }
}

impl BoundPods {
    /// Sets what the watch shows of a pod; `None` for one that is not bound, or deleted.
    pub fn put(&mut self, uid: &PodUid, bound_pod: Option<Box<BoundPod>>) {
        if !self.all.is_empty() {
            self.remove(uid);
        }
        let Some(mut bound_pod) = bound_pod else {
            return;
        };
        self.share_labels(&mut bound_pod);
        *self.priorities.entry(bound_pod.priority).or_default() += 1;
        if bound_pod.kube.is_some() {
            self.kube.insert(uid.clone());
        }
        self.all.insert(uid.clone(), bound_pod);
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
        // The set and this pod were their only owners.
        if Arc::strong_count(&old.labels) == 2 {
            self.labels.remove(&old.labels);
        }
    }

    /// A list is complete. Labels of pods that only an interrupted list had are removed too.
    pub fn retain(&mut self, listed: impl Fn(&PodUid) -> bool) {
        let gone = self.all.keys().filter(|uid| !listed(uid)).cloned();
        for uid in gone.collect::<Vec<_>>() {
            self.remove(&uid);
        }
        self.labels.retain(|labels| Arc::strong_count(labels) > 1);
    }

    pub fn get(&self, uid: &PodUid) -> Option<&BoundPod> {
        self.all.get(uid).map(|bound_pod| &**bound_pod)
    }

    /// The lowest priority that any of them has.
    pub fn lowest(&self) -> Option<i32> {
        self.priorities.first_key_value().map(|(lowest, _)| *lowest)
    }

    /// The nodes where pods terminate because kube-scheduler preempts them.
    pub fn kube_nodes(&self) -> impl Iterator<Item = &NodeName> {
        let terminating = self.kube.iter().filter_map(|uid| self.all.get(uid));
        terminating.filter_map(|bound_pod| bound_pod.kube.as_ref())
    }

    /// The disruption budgets now.
    pub fn budgets(&self) -> Budgets {
        self.budgets.clone()
    }

    /// Lets the pod share its labels with pods that have equal ones. A list would take several times
    /// the memory otherwise, until it is complete.
    pub(super) fn share_labels(&mut self, bound_pod: &mut BoundPod) {
        if let Some(known) = self.labels.get(&bound_pod.labels) {
            bound_pod.labels = known.clone();
        } else {
            self.labels.insert(bound_pod.labels.clone());
        }
    }
}

fn key(budget: &PodDisruptionBudget) -> (String, String) {
    let meta = &budget.metadata;
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    (text(&meta.namespace), text(&meta.name))
}

impl Index<PodDisruptionBudget> for LedgerCache {
    type Entry = ((String, String), Budget);

    fn entry(&self, budget: PodDisruptionBudget) -> Self::Entry {
        (key(&budget), Budget::read(&budget))
    }

    fn apply(&self, budget: PodDisruptionBudget) {
        let (key, entry) = Index::<PodDisruptionBudget>::entry(self, budget);
        let budgets = &mut self.lock().bound_pods.budgets.0;
        Arc::make_mut(budgets).insert(key, entry);
    }

    fn delete(&self, budget: PodDisruptionBudget) {
        let budgets = &mut self.lock().bound_pods.budgets.0;
        Arc::make_mut(budgets).remove(&key(&budget));
    }

    fn replace(&self, budgets: Vec<Self::Entry>) {
        self.lock().bound_pods.budgets.0 = Arc::new(budgets.into_iter().collect());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, priority: i32, app: &str) -> PodView {
        pod_in(name, priority, app, "Running")
    }

    fn pod_in(name: &str, priority: i32, app: &str, phase: &str) -> PodView {
        let pod = json!({
            "metadata": {"name": name, "namespace": "d", "uid": name, "labels": {"app": app}},
            "spec": {"nodeName": "n", "priority": priority},
            "status": {"phase": phase},
        });
        serde_json::from_value(pod).unwrap()
    }

    fn put(bound_pods: &mut BoundPods, pod: &PodView, has_share: bool) {
        let allocated = if has_share {
            AllocatedUse::Unreadable
        } else {
            AllocatedUse::nothing()
        };
        bound_pods.put(&pod.uid(), read(pod, &"n".into(), &allocated));
    }

    #[test]
    fn shares_equal_labels_until_their_last_pod_ends() {
        let mut bound_pods = BoundPods::default();
        for name in ["a", "b"] {
            put(&mut bound_pods, &pod(name, 5, "web"), true);
        }
        put(&mut bound_pods, &pod("c", 1, "db"), true);
        assert_eq!((bound_pods.labels.len(), bound_pods.lowest()), (2, Some(1)));
        put(&mut bound_pods, &pod("c", 1, "db"), false);
        assert_eq!((bound_pods.labels.len(), bound_pods.lowest()), (1, Some(5)));
        bound_pods.retain(|uid| uid.as_str() == "b");
        assert_eq!((bound_pods.labels.len(), bound_pods.lowest()), (1, Some(5)));
        put(&mut bound_pods, &pod("b", 5, "web"), true);
        bound_pods.put(&"b".into(), None);
        assert_eq!((bound_pods.labels.len(), bound_pods.lowest()), (0, None));
        // Of a list that was interrupted.
        let listed = pod("d", 1, "web");
        let mut listed = read(&listed, &"n".into(), &AllocatedUse::Unreadable).unwrap();
        bound_pods.share_labels(&mut listed);
        drop(listed);
        bound_pods.retain(|_| true);
        assert_eq!(bound_pods.labels.len(), 0);
    }

    #[test]
    fn budgets_cover_running_pods_that_they_select() {
        let cache = LedgerCache::default();
        apply_budget(&cache, "b");
        let starting = pod_in("starting", 1, "web", "Pending");
        let bound_pods = &mut cache.lock().bound_pods;
        for pod in [pod("web", 1, "web"), pod("db", 1, "db"), starting] {
            put(bound_pods, &pod, true);
        }
        let budgets = bound_pods.budgets();
        assert_eq!(budgets.allowed_evictions(), [3]);
        for (name, expected) in [("web", vec![0]), ("db", vec![]), ("starting", vec![])] {
            let bound_pod = bound_pods.get(&name.into()).unwrap();
            assert_eq!(budgets.of(bound_pod), expected, "{name}");
        }
    }

    /// A plan looks at one node after the other.
    #[test]
    fn budgets_that_come_later_concern_no_plan_under_way() {
        let cache = LedgerCache::default();
        apply_budget(&cache, "b");
        put(&mut cache.lock().bound_pods, &pod("web", 1, "web"), true);
        let budgets = cache.lock().bound_pods.budgets();
        for name in ["a", "c"] {
            apply_budget(&cache, name);
        }
        let bound_pods = &cache.lock().bound_pods;
        let web = bound_pods.get(&"web".into()).unwrap();
        assert_eq!(budgets.of(web), [0]);
        assert_eq!(budgets.allowed_evictions(), [3]);
        assert_eq!(bound_pods.budgets().of(web), [0, 1, 2]);
    }

    /// A budget of the pods `web`.
    fn apply_budget(cache: &LedgerCache, name: &str) {
        let budget = json!({
            "metadata": {"name": name, "namespace": "d", "generation": 1},
            "spec": {"selector": {"matchLabels": {"app": "web"}}},
            "status": {"disruptionsAllowed": 3, "currentHealthy": 4, "desiredHealthy": 1,
                "expectedPods": 4, "observedGeneration": 1},
        });
        let budget: PodDisruptionBudget = serde_json::from_value(budget).unwrap();
        Index::apply(cache, budget);
    }
}
