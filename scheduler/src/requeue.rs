//! Requeues refused pods when capacity was freed.
//!
//! kube-scheduler retries a refused pod on cluster events, but it may see a pod's end before our
//! ledger does, have the pod refused once more, and then wait for minutes. A patched annotation on
//! exactly the pods that fit now is an event that puts only these back into its active queue. A pod
//! that still does not fit is never patched.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aliquot_core::decide::PendingPlacement;
use aliquot_core::fit::{self, Policies};
use aliquot_core::ledger::PodEntry;
use aliquot_core::quota::{Headroom, QuotaAmount};
use aliquot_core::{Cluster, Demand, Namespace, NodeName, NodeState, PodUid};
use aliquot_k8s::event::PodRef;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::capacity_events::{CapacityEvent, FreedCapacity};
use crate::fail_point::{self, Point};
use crate::leader::Leader;
use crate::ledger_cache::{Claim, LedgerCache};
use crate::metrics::Metrics;
use crate::pending::PendingPod;

/// The annotation that is patched; its value is the time in milliseconds.
pub const REQUEUE_ANNOTATION: &str = "aliquot.dev/nudge";
const DEADLINE: Duration = Duration::from_secs(3);
/// Pause before pods whose requeueing failed are checked again.
const RETRY: Duration = Duration::from_secs(1);

/// Runs until `stop`.
pub async fn run(
    cache: Arc<LedgerCache>,
    client: Client,
    leader: Leader,
    metrics: Metrics,
    stop: CancellationToken,
) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = cache.capacity_changed() => {}
        }
        // Only the leader requeues. Until then the events are kept: a new leader's list is in the
        // ledger before it leads.
        tokio::select! {
            () = stop.cancelled() => return,
            () = leader.leads() => {}
        }
        let mut failed = Vec::new();
        for (uid, pod) in cache.take_requeueable() {
            let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace);
            let patch = Patch::Merge(patch(&pod.uid, SystemTime::now()));
            let params = PatchParams::default();
            let call = api.patch_metadata(&pod.name, &params, &patch);
            fail_point::at(Point::RequeueBeforePatch);
            let answer = timeout(DEADLINE, call).await;
            fail_point::at(Point::RequeueAfterPatch);
            match answer {
                Ok(Ok(_)) => {
                    metrics.requeues.inc();
                    tracing::info!(
                        pod = pod.name,
                        namespace = pod.namespace,
                        "requeued, the pod fits now"
                    );
                }
                Ok(Err(kube::Error::Api(status))) if status.code == 404 => {
                    cache.remove_pending(&uid);
                }
                // Also a conflict: of several writers, or because another pod has its name (uid
                // precondition). The watch will show which.
                Ok(Err(error)) => {
                    tracing::warn!(pod = pod.name, namespace = pod.namespace, %error, "cannot requeue the pod, which fits now");
                    failed.push(uid);
                }
                Err(elapsed) => {
                    tracing::warn!(pod = pod.name, namespace = pod.namespace, error = %elapsed, "cannot requeue the pod, which fits now");
                    failed.push(uid);
                }
            }
        }
        if failed.is_empty() {
            continue;
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(RETRY) => {}
        }
        for uid in &failed {
            cache.requeue_failed(uid);
        }
    }
}

fn patch(uid: &str, now: SystemTime) -> serde_json::Value {
    let millis = now
        .duration_since(UNIX_EPOCH)
        .map_or(0, |age| age.as_millis());
    json!({"metadata": {"uid": uid, "annotations": {REQUEUE_ANNOTATION: millis.to_string()}}})
}

impl LedgerCache {
    /// A number that grows with every capacity event; see [`Self::refused`].
    pub fn capacity_event_count(&self) -> u64 {
        self.capacity_events.lock().count()
    }

    /// Returns after a capacity event, or after a claim has expired.
    pub async fn capacity_changed(&self) {
        let next = self.claims.lock().next_expiry();
        let expired = async {
            match next {
                Some(next) => tokio::time::sleep_until(next).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.capacity_notify.notified() => {}
            () = expired => {
                let expired = self.claims.lock().expire(Instant::now());
                for claim in expired {
                    self.claim_freed(&claim);
                }
            }
        }
    }

    /// Takes the mark of refusal from those refused pods that fit together where capacity was
    /// freed, highest priority first, and returns them.
    pub fn take_requeueable(&self) -> Vec<(PodUid, PodRef)> {
        let (cluster, freed) = self.take_freed();
        if freed.is_empty() {
            return Vec::new();
        }
        let mut all = self.pending_pods.lock();
        let refused = || all.iter().filter(|(_, pending)| pending.refused);
        let namespaces: HashSet<_> = refused().map(|(_, p)| p.pod.namespace.as_str()).collect();
        let headrooms = self.read(|ledger| {
            let left = |name| Some((name, ledger.headroom(name)?));
            namespaces.into_iter().filter_map(left).collect()
        });
        // After the ledger: a pod that has reserved what it claimed claims it no longer.
        let now = Instant::now();
        let claims = self.claims.lock().all(now);
        let policies = self.policies();
        let with_reservation = self.read(|ledger| {
            let fits = |(uid, pending): (&PodUid, &PendingPod)| {
                let (slot, state) = ledger.node_seen_by_preemptor(uid)?;
                let fit = fit::fit(&state, &pending.demand, &policies).ok()?;
                let amount = QuotaAmount::of(fit.uses.iter().map(|(_, used)| used));
                let headroom = ledger.headroom(&pending.pod.namespace);
                let allowed = headroom.is_none_or(|left| left.allows(amount));
                (allowed && freed.slots.contains(&slot)).then(|| uid.clone())
            };
            let preemptors = ledger.reservations().map(|(uid, _)| uid);
            let preemptors = preemptors.filter_map(|uid| all.get_key_value(uid));
            let refused = preemptors.filter(|(_, pending)| pending.refused);
            refused.filter_map(fits).collect::<Vec<_>>()
        });
        let capacity = FreeCapacity {
            cluster: &cluster,
            freed: &freed,
            claims: &claims,
            headrooms,
            policies: &policies,
        };
        let others = refused().filter(|(uid, _)| !with_reservation.contains(uid));
        let together: Vec<_> = fit_together(others, capacity)
            .into_iter()
            .map(|(uid, placement)| (uid.clone(), placement))
            .collect();
        let mut requeueable = Vec::with_capacity(together.len());
        for uid in with_reservation {
            if let Some(pending) = all.get_mut(&uid) {
                pending.refused = false;
                requeueable.push((uid, pending.pod.clone()));
            }
        }
        for (uid, placement) in together {
            if let Some(pending) = all.get_mut(&uid) {
                pending.refused = false;
                let namespace = pending.pod.namespace.as_str().into();
                let claim = Claim {
                    placement,
                    namespace,
                };
                let old = self.claims.lock().put(&uid, claim, now);
                if let Some(old) = old {
                    self.claim_freed(&old);
                }
                requeueable.push((uid, pending.pod.clone()));
            }
        }
        requeueable
    }

    /// Where pods have to be checked again, and the nodes with all of it. Both under one lock: an
    /// event between the two would be taken without being in the nodes.
    fn take_freed(&self) -> (Cluster, FreedCapacity) {
        let mut events = self.capacity_events.lock();
        let cluster = self.snapshot();
        let freed = events.take(cluster.slots());
        (cluster, freed)
    }

    /// The pod could not be requeued: it is checked again.
    pub fn requeue_failed(&self, pod: &PodUid) {
        if let Some(pending) = self.pending_pods.lock().get_mut(pod) {
            pending.refused = true;
        }
        self.end_claim(pod);
        self.add_capacity_event(CapacityEvent::Everywhere);
    }

    /// Ends the pod's claim: another pod may take what it claimed.
    pub(crate) fn end_claim(&self, pod: &PodUid) {
        let ended = self.claims.lock().end(pod);
        if let Some(claim) = ended {
            self.claim_freed(&claim);
        }
    }

    /// This claim has ended.
    pub(crate) fn claim_freed(&self, claim: &Claim) {
        self.add_capacity_event(CapacityEvent::Slot(claim.placement.slot));
        self.quota_freed(&claim.namespace);
    }

    /// This allocation or reservation has ended.
    pub(crate) fn allocation_freed(&self, entry: &PodEntry) {
        self.node_freed(&entry.node);
        if entry.uses_devices() {
            self.quota_freed(&entry.namespace);
        }
    }

    /// The namespace's quotas leave more than before, if it has any.
    fn quota_freed(&self, namespace: &Namespace) {
        if self.read(|ledger| ledger.namespaces().has_quota(namespace.as_str())) {
            self.add_capacity_event(CapacityEvent::Namespace(namespace.clone()));
        }
    }

    pub(crate) fn add_capacity_event(&self, event: CapacityEvent) {
        self.capacity_events.lock().add(event);
        self.capacity_notify.notify_one();
    }

    /// Capacity was freed on this node.
    pub(crate) fn node_freed(&self, node: &NodeName) {
        let slot = self.read(|ledger| ledger.cluster().slot(node.as_str()));
        // An unknown node has no capacity.
        if let Some(slot) = slot {
            self.add_capacity_event(CapacityEvent::Slot(slot));
        }
    }
}

/// The nodes, and what of them and of the namespaces' quotas is free.
#[derive(Debug)]
struct FreeCapacity<'a> {
    cluster: &'a Cluster,
    /// Where capacity was freed.
    freed: &'a FreedCapacity,
    /// What other pods are about to take.
    claims: &'a [Claim],
    /// What the quotas leave, by namespace, without what is claimed.
    headrooms: HashMap<&'a str, Headroom>,
    /// For pods that choose none.
    policies: &'a Policies,
}

/// Those of `refused` that fit together where capacity was freed, highest priority first (then by
/// uid), each with its placement.
fn fit_together<'w>(
    refused: impl IntoIterator<Item = (&'w PodUid, &'w PendingPod)>,
    mut capacity: FreeCapacity<'_>,
) -> Vec<(&'w PodUid, PendingPlacement)> {
    let mut refused: Vec<_> = refused.into_iter().collect();
    refused.sort_by(|(a, x), (b, y)| y.priority.cmp(&x.priority).then_with(|| a.cmp(b)));
    let all: Vec<usize> = (0..capacity.cluster.slots()).collect();
    // Nodes that differ from the cluster's.
    let mut changed: HashMap<usize, NodeState> = HashMap::new();
    for claim in capacity.claims {
        let placement = &claim.placement;
        add(&mut changed, capacity.cluster, placement);
        if let Some(headroom) = capacity.headrooms.get_mut(claim.namespace.as_str()) {
            headroom.take(QuotaAmount::of(placement.uses.iter().map(|(_, used)| used)));
        }
    }
    // Capacity only shrinks here, so where a shape does not fit, it never will. Shapes are counted
    // separately for a namespace with quotas, or one whose quota was raised.
    let mut full: HashMap<(Option<&str>, Cow<'_, Demand>), HashSet<usize>> = HashMap::new();
    let mut placed = Vec::new();
    for (uid, pod) in refused {
        let namespace = pod.pod.namespace.as_str();
        let quota_raised = capacity.freed.namespaces.contains(namespace);
        let slots = if quota_raised {
            &all
        } else {
            &capacity.freed.slots
        };
        let headroom = capacity.headrooms.get_mut(namespace);
        let separate = (quota_raised || headroom.is_some()).then_some(namespace);
        let full = full
            .entry((separate, pod.demand.shape(capacity.cluster)))
            .or_default();
        if full.len() == slots.len() {
            continue;
        }
        let found = slots.iter().find_map(|&slot| {
            if !pod.offered.contains(slot) || full.contains(&slot) {
                return None;
            }
            let state = changed.get(&slot);
            let state = state.or_else(|| capacity.cluster.at(slot).map(AsRef::as_ref));
            let fit = fit::fit(state?, &pod.demand, capacity.policies).ok();
            let fit = fit.filter(|fit| {
                let amount = QuotaAmount::of(fit.uses.iter().map(|(_, used)| used));
                headroom.as_ref().is_none_or(|left| left.allows(amount))
            });
            if fit.is_none() {
                full.insert(slot);
            }
            fit.map(|fit| PendingPlacement::of(slot, fit, &pod.demand))
        });
        if let Some(placement) = found {
            add(&mut changed, capacity.cluster, &placement);
            if let Some(headroom) = headroom {
                headroom.take(QuotaAmount::of(placement.uses.iter().map(|(_, used)| used)));
            }
            placed.push((uid, placement));
        }
    }
    placed
}

fn add(changed: &mut HashMap<usize, NodeState>, cluster: &Cluster, placement: &PendingPlacement) {
    if let Some(node) = cluster.at(placement.slot) {
        let state = changed.entry(placement.slot);
        let state = state.or_insert_with(|| (**node).clone());
        *state = placement.on(state);
    }
}

#[cfg(test)]
mod tests {
    use aliquot_k8s::watch::Index;
    use http::{Request, Response};
    use kube::client::Body;
    use prometheus_client::registry::Registry;
    use tower_test::mock;

    use super::*;
    use crate::ledger_cache::tests::{cache, pod};

    /// The events of a new term's list were once lost because they came before this replica led.
    #[tokio::test(start_paused = true)]
    async fn requeues_on_leading_for_capacity_freed_before() {
        let leader = Leader::replica();
        leader.set_holder("pod-b_1");
        let requeue = check(leader.clone(), &[200], async move || {
            let waited = tokio::time::timeout(DEADLINE, std::future::pending::<()>());
            assert!(waited.await.is_err());
            leader.set_holder("pod-a_1");
        });
        requeue.await;
    }

    #[tokio::test(start_paused = true)]
    async fn requeues_again_after_failed_patch() {
        check(Leader::always(), &[503, 200], async || {}).await;
    }

    #[tokio::test(start_paused = true)]
    async fn requeues_again_after_conflicting_patch() {
        check(Leader::always(), &[409, 409, 200], async || {}).await;
    }

    /// A refused pod fits from the start; the patches get these status codes after `first`.
    async fn check(leader: Leader, codes: &[u16], first: impl AsyncFnOnce()) {
        let (service, mut server) = mock::pair::<Request<Body>, Response<Body>>();
        let cache = Arc::new(cache());
        Index::reset(&*cache, vec![pod("a", 600, None)]);
        let metrics = Metrics::new(&mut Registry::default());
        let stop = CancellationToken::new();
        let client = Client::new(service, "d");
        let requeue = run(cache, client, leader, metrics.clone(), stop.clone());
        let requeue = tokio::spawn(requeue);
        first().await;
        for code in codes {
            let request = timeout(RETRY * 2, server.next_request()).await;
            let (request, send) = request.expect("in time").expect("a patch");
            assert_eq!(request.uri().path(), "/api/v1/namespaces/d/pods/a");
            let body = if *code == 200 {
                json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}})
            } else {
                json!({"kind": "Status", "status": "Failure", "code": code})
            };
            let body = Body::from(serde_json::to_vec(&body).unwrap());
            send.send_response(Response::builder().status(*code).body(body).unwrap());
        }
        stop.cancel();
        requeue.await.unwrap();
        assert_eq!(metrics.requeues.get(), 1);
    }
}
