//! The one write: a Binding that carries the allocation (design 4.3).
//!
//! `reserve` takes the cards in the books, then one POST binds the pod and
//! annotates it in one transaction, with the pod's uid as precondition. While
//! its outcome is unknown (timeout, lost connection, server error) the same
//! POST is repeated; a reservation is freed only on a definite answer.
//! Fed by: [`crate::routes`], in a task that outlives its HTTP request.
//! Must not: confirm a booking; the watch does. Settled reservations that the
//! watch never shows are looked after by [`crate::audit`].

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::allocation::ALLOCATION;
use aliquot_core::ledger::NotReserved;
use aliquot_core::{Allocation, Demand, Namespace, NodeName, PodUid};
use aliquot_k8s::event::{Notes, PodRef};
use aliquot_k8s::extender::ExtenderBindingArgs;
use aliquot_k8s::pod;
use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use kube::{Api, Client};
use parking_lot::Mutex;
use serde::de::IgnoredAny;
use serde_json::json;
use tokio::time::{Instant, timeout};

use crate::bind_error::{ANNOTATIONS, BindError};
use crate::binding;
use crate::books::Books;
use crate::fail_point::{self, Point};
use crate::leader::Leader;
use crate::waiting::{Waiting, waiting};

/// Longest wait for one POST or GET (design 4.3.2).
pub const DEADLINE: Duration = Duration::from_secs(3);
/// Pause between repetitions: doubles from the first to the second.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// A reservation whose Binding was accepted and that the watch has not shown.
#[derive(Clone, Debug)]
pub struct Settled {
    /// The pod.
    pub pod: PodRef,
    /// When the API server accepted it.
    pub since: Instant,
}

/// Binds pods; at most one call per pod at a time.
pub struct Binder {
    books: Arc<Books>,
    client: Client,
    notes: Notes,
    leader: Leader,
    /// HAMi's annotation is written too, for what reads it.
    hami: bool,
    flights: Mutex<HashMap<PodUid, Arc<tokio::sync::Mutex<()>>>>,
    settled: Mutex<HashMap<PodUid, Settled>>,
}

/// What one POST of a Binding told.
#[derive(Debug)]
enum Posted {
    Bound,
    Gone,
    Conflict(String),
    Rejected(String),
    Unknown(String),
}

impl Binder {
    /// A binder that writes with `client`.
    pub fn new(books: Arc<Books>, client: Client, notes: Notes, leader: Leader) -> Self {
        Self {
            leader,
            hami: false,
            books,
            client,
            notes,
            flights: Mutex::default(),
            settled: Mutex::default(),
        }
    }

    /// Whether the Binding carries HAMi's annotation beside ours.
    #[must_use]
    pub fn with_hami_annotations(self, hami: bool) -> Self {
        Self { hami, ..self }
    }

    /// Books and binds. A second call for the same pod waits for the first and
    /// then answers what it brought about.
    pub async fn bind(&self, args: &ExtenderBindingArgs) -> Result<(), BindError> {
        let uid: PodUid = args.pod_uid.as_str().into();
        let flight = self.flights.lock().entry(uid.clone()).or_default().clone();
        let guard = flight.lock().await;
        let outcome = self.bind_alone(&uid, args).await;
        drop(guard);
        let mut flights = self.flights.lock();
        // Two owners: the table and this call. Nobody waits.
        if Arc::strong_count(&flight) == 2 {
            flights.remove(&uid);
        }
        outcome
    }

    /// Reservations whose Binding was accepted; those the watch has shown meanwhile are dropped.
    pub fn settled(&self) -> Vec<(PodUid, Settled)> {
        let mut settled = self.settled.lock();
        self.books.read(|ledger| {
            settled.retain(|uid, _| ledger.booking(uid).is_some_and(|b| !b.confirmed));
        });
        settled
            .iter()
            .map(|(uid, s)| (uid.clone(), s.clone()))
            .collect()
    }

    async fn bind_alone(&self, uid: &PodUid, args: &ExtenderBindingArgs) -> Result<(), BindError> {
        let pod = PodRef {
            namespace: args.pod_namespace.clone(),
            name: args.pod_name.clone(),
            uid: args.pod_uid.clone(),
        };
        let namespace: Namespace = args.pod_namespace.as_str().into();
        let node: NodeName = args.node.as_str().into();
        if let Some(fault) = self.leader.fault() {
            return Err(BindError::NotLeading(fault));
        }
        let Waiting {
            demand,
            annotation_bytes: used,
            ..
        } = match self.books.waiting(uid) {
            Some(waiting) => waiting,
            None => self.fetch(&pod).await?,
        };
        fail_point::at(Point::BeforeReserve);
        let allocation = match self.books.reserve(uid, &namespace, &node, &demand) {
            Ok(allocation) => allocation,
            // An earlier call for this pod brought it about.
            Err(NotReserved::Booked(booked)) if booked == node => return Ok(()),
            Err(NotReserved::Booked(node)) => return Err(BindError::Booked { node }),
            Err(NotReserved::Refused(refusal)) => {
                let why = refusal.to_string();
                return Err(BindError::Refused { node, why });
            }
        };
        fail_point::at(Point::AfterReserve);
        let written = self.write(&pod, &node, &demand, &allocation, used).await;
        match &written {
            Ok(()) => {
                fail_point::at(Point::AfterCreated);
                let since = Instant::now();
                let settled = Settled {
                    pod: pod.clone(),
                    since,
                };
                self.settled.lock().insert(uid.clone(), settled);
                tracing::info!(pod = pod.name, namespace = pod.namespace, %node, "bound");
                fail_point::at(Point::BeforeEvent);
                self.notes.send(binding::booked(pod, &node, &allocation));
                fail_point::at(Point::AfterEvent);
            }
            Err(error) => {
                tracing::warn!(pod = pod.name, namespace = pod.namespace, %node, %error, "not bound");
                fail_point::at(Point::BeforeCancel);
                self.books.cancel(uid);
                fail_point::at(Point::AfterCancel);
            }
        }
        written
    }

    /// The pod from the API server, where kube-scheduler's watch was ahead of ours.
    async fn fetch(&self, pod: &PodRef) -> Result<Waiting, BindError> {
        let found = self.get(pod).await.map_err(BindError::Get)?;
        let found = found.ok_or_else(|| BindError::Gone(pod.clone()))?;
        let demand = pod::demand(&found, self.books.settings())?;
        Ok(waiting(&found, demand, false))
    }

    async fn write(
        &self,
        pod: &PodRef,
        node: &NodeName,
        demand: &Demand,
        allocation: &Allocation,
        used: usize,
    ) -> Result<(), BindError> {
        let text = allocation.encode()?;
        let hami = self.hami.then_some(demand);
        let annotations = binding::annotations(allocation, &text, hami);
        let sizes = annotations.iter().map(|(key, text)| key.len() + text.len());
        let needed = sizes.sum();
        if used + needed > ANNOTATIONS {
            return Err(BindError::Annotations { used, needed });
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
            let outcome = self.attempt(pod, node, &text, &binding, &mut last);
            if let Some(outcome) = outcome.await {
                return outcome;
            }
            fail_point::at(Point::BetweenPosts);
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RETRY.1);
        }
    }

    /// One try; `None` while the outcome is unknown. `last`: when the last POST
    /// began, if there was one.
    async fn attempt(
        &self,
        pod: &PodRef,
        node: &NodeName,
        text: &str,
        binding: &serde_json::Value,
        last: &mut Option<Instant>,
    ) -> Option<Result<(), BindError>> {
        let now = Instant::now();
        let fault = self.leader.fault();
        // Nobody writes for this replica any more, and its last POST is over: what
        // a GET shows now is final, as the new leader's list is (design 4.3.4).
        let over = fault.is_some() && last.is_none_or(|last| now >= last + DEADLINE);
        let earlier = last.is_some();
        if fault.is_none() {
            *last = Some(now);
        }
        let (why, refused) = match fault {
            // May not write any more: look whether an earlier try got through.
            Some(fault) => (fault, false),
            None => match self.post(pod, binding).await {
                Posted::Bound => return Some(Ok(())),
                Posted::Gone => return Some(Err(BindError::Gone(pod.clone()))),
                // Says nothing about a try before the rights changed.
                Posted::Rejected(why) if earlier => (why, false),
                Posted::Rejected(why) => return Some(Err(BindError::Rejected(why))),
                Posted::Unknown(error) => {
                    tracing::warn!(pod = pod.name, error, "binding unknown");
                    return None;
                }
                Posted::Conflict(why) => (why, true),
            },
        };
        match self.get(pod).await {
            // Not bound, and no answer to an earlier try: it may still come.
            Ok(Some(found)) if !refused && pod::node(&found).is_none() => {
                over.then_some(Err(BindError::NotLeading(why)))
            }
            Ok(found) => Some(judge(found.as_ref(), pod, node, text, why)),
            Err(error) => {
                tracing::warn!(pod = pod.name, error, "binding unknown");
                None
            }
        }
    }

    async fn post(&self, pod: &PodRef, binding: &serde_json::Value) -> Posted {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
        let params = PostParams::default();
        let call = api.create_subresource::<_, IgnoredAny>("binding", &pod.name, &params, binding);
        fail_point::at(Point::BeforePost);
        let answer = timeout(DEADLINE, call).await;
        fail_point::at(Point::AfterPost);
        match answer {
            Ok(Ok(_)) => Posted::Bound,
            Ok(Err(kube::Error::Api(status))) => match status.code {
                404 => Posted::Gone,
                409 => Posted::Conflict(status.message),
                408 | 429 | 500.. => Posted::Unknown(status.message),
                _ => Posted::Rejected(status.message),
            },
            Ok(Err(error)) => Posted::Unknown(error.to_string()),
            Err(elapsed) => Posted::Unknown(elapsed.to_string()),
        }
    }

    /// The pod as it is now; `None` when it, with this uid, does not exist.
    pub async fn get(&self, pod: &PodRef) -> Result<Option<Pod>, String> {
        let found = self.find(&pod.namespace, &pod.name).await?;
        Ok(found.filter(|f| f.metadata.uid.as_deref() == Some(&pod.uid)))
    }

    /// The pod of this name, whatever its uid.
    pub async fn find(&self, namespace: &str, name: &str) -> Result<Option<Pod>, String> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        match timeout(DEADLINE, api.get_opt(name)).await {
            Ok(Ok(found)) => Ok(found),
            Ok(Err(error)) => Err(error.to_string()),
            Err(elapsed) => Err(elapsed.to_string()),
        }
    }
}

/// What a conflict meant: an earlier copy of our POST got through, or not.
fn judge(
    found: Option<&Pod>,
    pod: &PodRef,
    node: &NodeName,
    text: &str,
    why: String,
) -> Result<(), BindError> {
    let Some(found) = found else {
        return Err(BindError::Gone(pod.clone()));
    };
    match pod::node(found) {
        None => Err(BindError::Rejected(why)),
        Some(bound) if bound == *node && pod::annotation(found, ALLOCATION) == Some(text) => Ok(()),
        Some(bound) => Err(BindError::Elsewhere(bound.to_string())),
    }
}

#[cfg(test)]
#[path = "bind_tests.rs"]
mod tests;
