//! Binds pods: one write, a Binding with the allocation in its annotations.
//!
//! `reserve` sets the devices aside in the ledger, then one POST binds and annotates the pod in
//! one transaction, with the pod's uid as precondition. While the outcome is unknown (timeout,
//! lost connection, server error) the same POST is repeated; a reservation is released only on a
//! definite answer. Only the watch confirms a reservation; of accepted ones that it does not show,
//! those whose pod does not exist are released.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::allocation::{ALLOCATION, CodecError, MAX_ANNOTATION_BYTES};
use aliquot_core::ledger::NotReserved;
use aliquot_core::{Allocation, Demand, Namespace, NodeName, PodUid, hami};
use aliquot_k8s::event::{EventNote, EventSender, PodRef};
use aliquot_k8s::extender::ExtenderBindingArgs;
use aliquot_k8s::pod::{self, DemandError};
use aliquot_k8s::view::PodView;
use aliquot_serve::fail_point;
use kube::api::PostParams;
use parking_lot::Mutex;
use serde::de::IgnoredAny;
use serde_json::json;
use thiserror::Error;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::leader::Leader;
use crate::ledger_cache::LedgerCache;
use crate::ledger_cache::pending_pods::PendingPod;
use crate::pod_client::{DEADLINE, PodClient, leaves_unknown, shortened};
use crate::ticks::Ticks;

/// Pause between repetitions: it doubles from the first to the second.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Interval of checking accepted Bindings, and the time after which one that the watch has not
/// confirmed is checked.
const OVERDUE: Duration = Duration::from_secs(10);

/// Why a pod was not bound. The text goes to kube-scheduler and into its event.
#[derive(Debug, Error)]
pub enum BindError {
    #[error("pod {namespace}/{name} with uid {uid} is gone", namespace = .0.namespace, name = .0.name, uid = .0.uid)]
    Gone(PodRef),
    #[error("the pod's GPU request is invalid: {0}")]
    Demand(#[from] DemandError),
    #[error("node {node} can no longer serve the GPU request: {why}")]
    Refused { node: NodeName, why: String },
    #[error(
        "nothing is reserved for this member of pod group {gang}; expected: its Binding soon after filter, of the same scheduler"
    )]
    GivenBack { gang: String },
    #[error("the pod already has an allocation on node {node}")]
    AlreadyAllocated { node: NodeName },
    #[error(
        "the pod's annotations have {used} bytes and its allocation needs {needed} more; expected: at most {MAX_ANNOTATION_BYTES} in all"
    )]
    AnnotationsTooLarge { used: usize, needed: usize },
    #[error(transparent)]
    Encode(#[from] CodecError),
    #[error("the API server rejected the Binding: {0}")]
    Rejected(String),
    #[error("another Binding has bound the pod to node {0:?}")]
    Elsewhere(String),
    #[error("this replica may not bind: {0}")]
    NotLeading(String),
    #[error("cannot get the pod: {0}")]
    Get(String),
}

impl BindError {
    /// The outcome for the metrics: `conflict` for a node that is full by now, `gone` for a pod
    /// that is deleted, else `error`.
    pub fn outcome(&self) -> &'static str {
        match self {
            Self::Refused { .. } | Self::GivenBack { .. } => "conflict",
            Self::Gone(_) => "gone",
            _ => "error",
        }
    }
}

/// A reservation whose Binding was accepted, but which the watch has not confirmed yet.
#[derive(Clone, Debug)]
struct Settled {
    pod: PodRef,
    /// When the API server accepted it.
    since: Instant,
}

/// Binds pods; at most one call per pod at a time.
pub struct Binder {
    cache: Arc<LedgerCache>,
    pods: PodClient,
    events: EventSender,
    leader: Leader,
    /// HAMi's annotation is written too, for programs that read it.
    hami: bool,
    in_flight: Mutex<HashMap<PodUid, Arc<tokio::sync::Mutex<()>>>>,
    settled: Mutex<HashMap<PodUid, Settled>>,
}

#[derive(Debug)]
enum PostOutcome {
    Bound,
    Gone,
    Conflict(String),
    Rejected(String),
    Unknown(String),
}

impl Binder {
    pub fn new(
        cache: Arc<LedgerCache>,
        pods: PodClient,
        events: EventSender,
        leader: Leader,
    ) -> Self {
        Self {
            leader,
            hami: false,
            cache,
            pods,
            events,
            in_flight: Mutex::default(),
            settled: Mutex::default(),
        }
    }

    /// Whether the Binding carries HAMi's annotation beside ours.
    #[must_use]
    pub fn with_hami_annotations(self, hami: bool) -> Self {
        Self { hami, ..self }
    }

    /// Reserves and binds. A second call for the same pod waits for the first and then returns
    /// its result.
    pub async fn bind(&self, args: &ExtenderBindingArgs) -> Result<(), BindError> {
        let uid: PodUid = args.pod_uid.as_str().into();
        let own = self
            .in_flight
            .lock()
            .entry(uid.clone())
            .or_default()
            .clone();
        let lock = own.lock().await;
        let outcome = self.bind_alone(&uid, args).await;
        drop(lock);
        let mut in_flight = self.in_flight.lock();
        // Two owners, the map and this call: no other call waits.
        if Arc::strong_count(&own) == 2 {
            in_flight.remove(&uid);
        }
        outcome
    }

    /// Reservations whose Binding was accepted, without those that the watch has confirmed.
    fn settled(&self) -> Vec<(PodUid, Settled)> {
        let mut settled = self.settled.lock();
        self.cache.read(|ledger| {
            settled.retain(|uid, _| {
                ledger
                    .pod_entry(uid)
                    .is_some_and(|entry| !entry.is_confirmed())
            });
        });
        settled
            .iter()
            .map(|(uid, s)| (uid.clone(), s.clone()))
            .collect()
    }

    /// Checks accepted Bindings that the watch has not confirmed in time, until `stop`.
    pub async fn check_settled(self: Arc<Self>, stop: CancellationToken) {
        let mut ticks = Ticks::every(OVERDUE, &stop);
        while ticks.next().await {
            self.release_vanished(Instant::now()).await;
        }
    }

    /// Releases overdue reservations whose pod no longer exists.
    async fn release_vanished(&self, now: Instant) {
        for (uid, settled) in self.settled() {
            if now.duration_since(settled.since) < OVERDUE {
                continue;
            }
            let pod = &settled.pod.name;
            match self.pods.get(&settled.pod).await {
                Ok(None) => {
                    tracing::info!(pod, "bound pod no longer exists, releasing its reservation");
                    self.cache.cancel(&uid);
                }
                Ok(Some(_)) => {
                    tracing::warn!(pod, "watch has not shown the bound pod yet");
                }
                Err(error) => {
                    tracing::warn!(pod, error = error.to_string(), "cannot get the bound pod");
                }
            }
        }
    }

    async fn bind_alone(&self, uid: &PodUid, args: &ExtenderBindingArgs) -> Result<(), BindError> {
        let pod = PodRef {
            namespace: args.pod_namespace.clone(),
            name: args.pod_name.clone(),
            uid: args.pod_uid.clone(),
        };
        let namespace: Namespace = args.pod_namespace.as_str().into();
        let node: NodeName = args.node.as_str().into();
        if let Some(reason) = self.leader.not_leading_reason() {
            return Err(BindError::NotLeading(reason));
        }
        let PendingPod {
            demand,
            gang,
            annotation_bytes: used,
            ..
        } = match self.cache.pending(uid) {
            Some(pending) => PendingPod::clone(&pending),
            None => self.fetch(&pod).await?,
        };
        if !demand.requests_gpu() {
            // kube-scheduler sends every pod that names a resource of ours, also with a count of 0.
            return self.write(&pod, &node, BTreeMap::new(), used).await;
        }
        if let Some(gang) = gang.filter(|gang| !self.cache.lock().begin_gang_binding(gang, uid)) {
            return Err(BindError::GivenBack { gang: gang.name });
        }
        fail_point::at("BeforeReserve");
        let allocation = match self.cache.reserve(uid, &namespace, &node, &demand) {
            Ok(allocation) => allocation,
            // An earlier call bound this pod.
            Err(NotReserved::AlreadyAllocated(other)) if other == node => return Ok(()),
            Err(NotReserved::AlreadyAllocated(node)) => {
                return Err(BindError::AlreadyAllocated { node });
            }
            Err(NotReserved::Refused(refusal)) => {
                let why = refusal.to_string();
                return Err(BindError::Refused { node, why });
            }
        };
        fail_point::at("AfterReserve");
        let hami = self.hami.then_some(&demand);
        let written = match binding_annotations(&allocation, hami) {
            Ok(annotations) => self.write(&pod, &node, annotations, used).await,
            Err(error) => Err(error.into()),
        };
        match &written {
            Ok(()) => {
                fail_point::at("AfterCreated");
                let since = Instant::now();
                let settled = Settled {
                    pod: pod.clone(),
                    since,
                };
                self.settled.lock().insert(uid.clone(), settled);
                tracing::info!(pod = pod.name, namespace = pod.namespace, %node, "pod bound");
                fail_point::at("BeforeEvent");
                self.events.send(allocated_event(pod, &node, &allocation));
                fail_point::at("AfterEvent");
            }
            Err(error) => {
                tracing::warn!(pod = pod.name, namespace = pod.namespace, %node, %error, "cannot bind pod");
                fail_point::at("BeforeCancel");
                self.cache.cancel(uid);
                fail_point::at("AfterCancel");
            }
        }
        written
    }

    /// The pod from the API server, where kube-scheduler's watch is ahead of ours.
    async fn fetch(&self, pod: &PodRef) -> Result<PendingPod, BindError> {
        let found = self
            .pods
            .get(pod)
            .await
            .map_err(|error| BindError::Get(error.to_string()))?
            .ok_or_else(|| BindError::Gone(pod.clone()))?;
        let demand = pod::demand(&found, self.cache.settings())?;
        Ok(PendingPod::read(&found, demand, false))
    }

    async fn write(
        &self,
        pod: &PodRef,
        node: &NodeName,
        annotations: BTreeMap<&str, String>,
        used: usize,
    ) -> Result<(), BindError> {
        let sizes = annotations.iter().map(|(key, text)| key.len() + text.len());
        let needed = sizes.sum();
        if used + needed > MAX_ANNOTATION_BYTES {
            return Err(BindError::AnnotationsTooLarge { used, needed });
        }
        let binding = json!({
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "name": pod.name,
                "namespace": pod.namespace,
                "uid": pod.uid,
                "annotations": annotations,
            },
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        });
        let mut pause = RETRY.0;
        let mut last = None;
        loop {
            let allocation = annotations.get(ALLOCATION).map(String::as_str);
            let outcome = self.attempt(pod, node, allocation, &binding, &mut last);
            if let Some(outcome) = outcome.await {
                return outcome;
            }
            fail_point::at("BetweenPosts");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RETRY.1);
        }
    }

    /// One attempt; `None` while the outcome is unknown. `last`: when the last POST started, if
    /// there was one.
    async fn attempt(
        &self,
        pod: &PodRef,
        node: &NodeName,
        allocation: Option<&str>,
        binding: &serde_json::Value,
        last: &mut Option<Instant>,
    ) -> Option<Result<(), BindError>> {
        let now = Instant::now();
        let not_leading = self.leader.not_leading_reason();
        // This replica writes no more and its last POST is over: what a GET shows now is final, as
        // the new leader's list is.
        let over = not_leading.is_some() && last.is_none_or(|last| now >= last + DEADLINE);
        let earlier = last.is_some();
        if not_leading.is_none() {
            *last = Some(now);
        }
        let (why, conflict) = match not_leading {
            // May not write any more: check whether an earlier attempt succeeded.
            Some(reason) => (reason, false),
            None => match self.post(pod, binding).await {
                PostOutcome::Bound => return Some(Ok(())),
                PostOutcome::Gone => return Some(Err(BindError::Gone(pod.clone()))),
                // An earlier attempt may have succeeded before the permissions changed.
                PostOutcome::Rejected(why) if earlier => (why, false),
                PostOutcome::Rejected(why) => return Some(Err(BindError::Rejected(why))),
                PostOutcome::Unknown(error) => {
                    tracing::warn!(
                        pod = pod.name,
                        error,
                        "outcome of the Binding unknown, trying again"
                    );
                    return None;
                }
                PostOutcome::Conflict(why) => (why, true),
            },
        };
        match self.pods.get(pod).await {
            // Not bound, and an earlier attempt is unanswered: it may still succeed.
            Ok(Some(found)) if !conflict && found.node().is_none() => {
                over.then_some(Err(BindError::NotLeading(why)))
            }
            Ok(found) => Some(conflict_outcome(found.as_ref(), pod, node, allocation, why)),
            Err(error) => {
                tracing::warn!(
                    pod = pod.name,
                    error = error.to_string(),
                    "outcome of the Binding unknown, trying again"
                );
                None
            }
        }
    }

    async fn post(&self, pod: &PodRef, binding: &serde_json::Value) -> PostOutcome {
        let api = self.pods.api(&pod.namespace);
        let params = PostParams::default();
        let call = api.create_subresource::<_, IgnoredAny>("binding", &pod.name, &params, binding);
        fail_point::at("BeforePost");
        let answer = timeout(DEADLINE, call).await;
        fail_point::at("AfterPost");
        match answer {
            Ok(Ok(_)) => PostOutcome::Bound,
            Ok(Err(kube::Error::Api(status))) => {
                let why = shortened(&status.message);
                match status.code {
                    404 => PostOutcome::Gone,
                    409 => PostOutcome::Conflict(why),
                    code if leaves_unknown(code) => PostOutcome::Unknown(why),
                    _ => PostOutcome::Rejected(why),
                }
            }
            Ok(Err(error)) => PostOutcome::Unknown(error.to_string()),
            Err(elapsed) => PostOutcome::Unknown(elapsed.to_string()),
        }
    }
}

/// The outcome after a conflict: an earlier copy of our POST succeeded, or not.
fn conflict_outcome(
    found: Option<&PodView>,
    pod: &PodRef,
    node: &NodeName,
    allocation: Option<&str>,
    why: String,
) -> Result<(), BindError> {
    let Some(found) = found else {
        return Err(BindError::Gone(pod.clone()));
    };
    match found.node() {
        None => Err(BindError::Rejected(why)),
        Some(bound) if bound == *node && found.annotation(ALLOCATION) == allocation => Ok(()),
        Some(bound) => Err(BindError::Elsewhere(bound.to_string())),
    }
}

/// The annotations of the Binding: the allocation, and HAMi's form of it where the pod's demand is
/// given.
fn binding_annotations(
    allocation: &Allocation,
    hami: Option<&Demand>,
) -> Result<BTreeMap<&'static str, String>, CodecError> {
    let mut annotations = BTreeMap::from([(ALLOCATION, allocation.encode()?)]);
    if let Some(demand) = hami {
        let containers = demand.containers.iter().map(|c| c.name.as_str());
        annotations.insert(hami::ALLOCATED, hami::encode(allocation, containers));
    }
    Ok(annotations)
}

/// The event about the pod's allocation.
fn allocated_event(pod: PodRef, node: &NodeName, allocation: &Allocation) -> EventNote {
    let containers = allocation.all().map(|(name, grants)| {
        let shares: Vec<_> = grants
            .iter()
            .map(|g| format!("{} ({}, cores {})", g.gpu, g.memory, g.cores))
            .collect();
        format!("{name} {}", shares.join(" + "))
    });
    let text = format!(
        "Allocated on node {node}: {}",
        containers.collect::<Vec<_>>().join("; ")
    );
    EventNote {
        pod,
        warning: false,
        reason: "Allocated",
        action: "Binding",
        text,
    }
}

#[cfg(test)]
#[path = "bind_tests.rs"]
mod tests;
