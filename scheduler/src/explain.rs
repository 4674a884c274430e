//! `GET /explain/<namespace>/<pod>` and `GET /top`: why a pod is pending, and what is free.
//!
//! The answers are written node by node from a snapshot, without a lock. A pod that is not pending
//! is fetched from the API server. The decisions are core's.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use aliquot_core::answer::{self, ContainerRequest, NodeTotals, PodHeader, PodPlacement};
use aliquot_core::cluster::NodeSet;
use aliquot_core::dynamic_mig::blocks_pinned_device;
use aliquot_core::explain::NodeAnswer;
use aliquot_core::fit::Policies;
use aliquot_core::ledger::{AllocatedUse, PodEntry};
use aliquot_core::quota::Headroom;
use aliquot_core::reason::Reason;
use aliquot_core::top::NodeTop;
use aliquot_core::usage::DeviceUses;
use aliquot_core::{Cluster, Demand, NodeState, PodUid};
use aliquot_k8s::event::PodRef;
use aliquot_k8s::pod;
use aliquot_serve::{Readiness, body};
use axum::Router;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use k8s_openapi::api::core::v1::Pod;
use serde::Serialize;
use tokio::time::Instant;

use crate::bind::Binder;
use crate::leader::Leader;
use crate::ledger_cache::LedgerCache;
use crate::pending::{PendingPod, RefusalRecord};
use crate::unreadable::UnreadablePod;

/// The state of the handlers.
#[derive(Clone)]
pub struct Explain {
    /// The ledger.
    pub cache: Arc<LedgerCache>,
    /// Fetches pods that are not pending.
    pub binder: Arc<Binder>,
    /// Whether this replica leads, so that kube-scheduler calls it.
    pub leader: Leader,
    /// Whether the ledger is up to date.
    pub readiness: Readiness,
}

impl LedgerCache {
    /// The pending pod of this name.
    fn pending_pod_named(&self, namespace: &str, name: &str) -> Option<PendingPod> {
        let all = self.pending_pods.lock();
        let named = |w: &&PendingPod| w.pod.name == name && w.pod.namespace == namespace;
        all.values().find(named).cloned()
    }
}

/// Why there is no answer.
pub(crate) type HttpError = (StatusCode, String);

/// The routes.
pub fn router(explain: Explain) -> Router {
    Router::new()
        .route("/explain/{namespace}/{pod}", get(pod_answer))
        .route("/top", get(top))
        .with_state(explain)
}

async fn pod_answer(
    State(explain): State<Explain>,
    Path((namespace, name)): Path<(String, String)>,
) -> Result<Response, HttpError> {
    explain.ready()?;
    let waiting = match explain.cache.pending_pod_named(&namespace, &name) {
        Some(waiting) => waiting,
        None => match explain.fetch(&namespace, &name).await? {
            FetchedPod::Pending(pending) => *pending,
            FetchedPod::Bound(head) => return Ok(json(head.as_ref(), std::iter::empty())),
        },
    };
    let uid: PodUid = waiting.pod.uid.as_str().into();
    let entry = explain.cache.read(|ledger| ledger.pod_entry(&uid).cloned());
    let asks = answer::container_requests(&waiting.demand);
    let mut head = explain.head(&namespace, &name, &uid, asks);
    head.refused = waiting
        .refusals
        .as_ref()
        .map(|refusals| history(refusals, Instant::now()));
    if let Some(entry) = entry {
        head.placement = Some(placement(&entry));
        return Ok(json(&head, std::iter::empty()));
    }
    Ok(json(&head, Nodes::of(explain.cache.clone(), &uid, waiting)))
}

async fn top(State(explain): State<Explain>) -> Result<Response, HttpError> {
    #[derive(Serialize)]
    struct TopHeader {
        default_cores: aliquot_core::Percent,
        leads: bool,
    }
    explain.ready()?;
    let cluster = explain.cache.snapshot();
    let default_cores = explain.cache.settings().defaults.cores;
    let slots = slots_by_name(&cluster);
    let unreadable = explain.cache.unreadable_pods();
    let lines = slots.into_iter().filter_map(move |slot| {
        let (name, node) = cluster.named(slot)?;
        let mut top = NodeTop::of(name, node, default_cores)?;
        let here = unreadable.values().filter(|found| found.node == *name);
        top.unreadable = here.map(UnreadablePod::full_name).collect();
        Some(Piece::Node(text(&top)))
    });
    let leads = explain.leader.not_leading_reason().is_none();
    let head = TopHeader {
        default_cores,
        leads,
    };
    Ok(json(&head, lines))
}

enum FetchedPod {
    Pending(Box<PendingPod>),
    Bound(Box<PodHeader>),
}

impl Explain {
    pub(crate) fn ready(&self) -> Result<(), HttpError> {
        let reasons = self.readiness.reasons();
        if reasons.is_empty() {
            return Ok(());
        }
        let why = format!("aliquot-scheduler is not ready: {}", reasons.join(", "));
        Err((StatusCode::SERVICE_UNAVAILABLE, why))
    }

    fn head(
        &self,
        namespace: &str,
        name: &str,
        uid: &PodUid,
        asks: Vec<ContainerRequest>,
    ) -> PodHeader {
        PodHeader {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: uid.clone(),
            leads: self.leader.not_leading_reason().is_none(),
            requests: asks,
            refused: None,
            placement: None,
        }
    }

    /// Fetches a pod that is not among the pending ones.
    async fn fetch(&self, namespace: &str, name: &str) -> Result<FetchedPod, HttpError> {
        let found = self.binder.find(namespace, name).await;
        let found = found.map_err(|error| {
            let why = format!("cannot get pod {namespace}/{name}: {error}");
            (StatusCode::BAD_GATEWAY, why)
        })?;
        let none = || {
            let why = format!("pod {namespace}/{name} not found");
            (StatusCode::NOT_FOUND, why)
        };
        self.state_of(namespace, name, &found.ok_or_else(none)?)
    }

    fn state_of(&self, namespace: &str, name: &str, pod: &Pod) -> Result<FetchedPod, HttpError> {
        let conflict = |why: &str| {
            let why = format!("pod {namespace}/{name} {why}");
            Err((StatusCode::CONFLICT, why))
        };
        let demand = match pod::demand(pod, self.cache.settings()) {
            Ok(demand) => demand,
            Err(error) => {
                return conflict(&format!("has an invalid GPU request: {error}"));
            }
        };
        if pod::is_finished(pod) {
            return conflict("has finished and has no GPU allocation");
        }
        let asks = answer::container_requests(&demand);
        match (pod::node(pod), pod::allocated(pod, self.cache.settings())) {
            (None, _) if !demand.requests_gpu() => conflict("requests no GPU"),
            (None, _) => Ok(FetchedPod::Pending(Box::new(PendingPod::read(
                pod, demand, false,
            )))),
            (Some(node), Some((_, allocated))) => {
                let entry = PodEntry {
                    node,
                    namespace: namespace.into(),
                    allocated,
                    requests: demand.requests(),
                    confirmed: true,
                };
                let mut answer = self.head(namespace, name, &pod::uid(pod), asks);
                answer.placement = Some(placement(&entry));
                Ok(FetchedPod::Bound(Box::new(answer)))
            }
            (Some(node), None) if demand.requests_gpu() => conflict(&format!(
                "requests a GPU share, but runs on node {node} without an allocation: another scheduler placed it"
            )),
            (Some(node), None) => conflict(&format!("requests no GPU; it is on node {node}")),
        }
    }
}

fn history(record: &RefusalRecord, now: Instant) -> answer::RefusalHistory {
    let seconds = |then| now.saturating_duration_since(then).as_secs_f64();
    answer::RefusalHistory {
        times: record.times,
        first_seconds_ago: seconds(record.first),
        last_seconds_ago: seconds(record.last),
        text: record.text.clone(),
    }
}

fn placement(entry: &PodEntry) -> PodPlacement {
    let amounts = |uses: &DeviceUses| {
        let uses = uses.iter();
        uses.map(|(gpu, used)| (gpu.clone(), (*used).into()))
            .collect()
    };
    PodPlacement {
        node: entry.node.clone(),
        confirmed: entry.confirmed,
        gpus: entry.allocated.uses().map(amounts),
    }
}

fn slots_by_name(cluster: &Cluster) -> Vec<usize> {
    let mut slots: Vec<_> = cluster.iter().map(|(slot, name, _)| (name, slot)).collect();
    slots.sort_unstable();
    slots.into_iter().map(|(_, slot)| slot).collect()
}

/// The answers for the nodes, one after the other, and then their totals.
struct Nodes {
    cache: Arc<LedgerCache>,
    cluster: Cluster,
    slots: std::vec::IntoIter<usize>,
    demand: Demand,
    policies: Arc<Policies>,
    offered: NodeSet,
    /// Nodes with the pods that have claims there.
    claimed: HashMap<usize, NodeState>,
    /// The node with a reservation for this pod, without that reservation.
    own: Option<(usize, NodeState)>,
    /// What the quotas of the pod's namespace leave.
    headroom: Option<Headroom>,
    tail: Option<NodeTotals>,
}

impl Nodes {
    fn of(cache: Arc<LedgerCache>, uid: &PodUid, waiting: PendingPod) -> Self {
        let namespace = waiting.pod.namespace.as_str();
        let (cluster, own, headroom) = cache.read(|ledger| {
            let headroom = ledger.headroom(namespace);
            (
                ledger.cluster().clone(),
                ledger.node_seen_by_preemptor(uid),
                headroom,
            )
        });
        let mut claimed: HashMap<usize, NodeState> = HashMap::new();
        for placement in cache.claims.lock().others(uid, Instant::now()) {
            if let Some(node) = cluster.at(placement.slot) {
                let state = claimed.entry(placement.slot);
                let state = state.or_insert_with(|| (**node).clone());
                *state = placement.on(state);
            }
        }
        Self {
            slots: slots_by_name(&cluster).into_iter(),
            cluster,
            demand: waiting.demand,
            policies: cache.policies(),
            cache,
            offered: waiting.offered,
            claimed,
            own,
            headroom,
            tail: Some(NodeTotals::default()),
        }
    }
}

impl Iterator for Nodes {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        let Some(slot) = self.slots.next() else {
            return Some(Piece::Tail(text(&self.tail.take()?)));
        };
        let (name, node) = self.cluster.named(slot)?;
        let own = self.own.as_ref().filter(|(own, _)| *own == slot);
        let node = own.map_or(&**node, |(_, state)| state);
        let (offered, claimed) = (self.offered.contains(slot), self.claimed.get(&slot));
        let (demand, policies) = (&self.demand, &self.policies);
        let left = self.headroom.as_ref();
        let (mut answer, refusal) =
            NodeAnswer::of(name, node, demand, policies, offered, claimed, left);
        self.cache.add_pin_holders(&mut answer, demand);
        self.cache.add_unreadable_pods(&mut answer);
        if let Some(tail) = &mut self.tail {
            tail.add(&answer, refusal.as_ref());
        }
        Some(Piece::Node(text(&answer)))
    }
}

/// A part of an answer, as JSON.
enum Piece {
    Node(String),
    /// An object, whose fields follow the nodes.
    Tail(String),
}

fn text(value: &impl Serialize) -> String {
    // Plain types whose maps have string keys: cannot fail.
    serde_json::to_string(value).unwrap_or_default()
}

/// One object: the fields of `head`, `nodes`, and those of the tail.
fn json<I>(head: &impl Serialize, pieces: I) -> Response
where
    I: Iterator<Item = Piece> + Send + 'static,
{
    let head = text(head);
    let fields = head.strip_suffix('}').unwrap_or_default();
    let open = format!("{fields},\"nodes\":[");
    let mut comma = "";
    let mut tail = String::from("]}");
    let mut pieces = pieces.fuse();
    let mut ended = false;
    let pieces = std::iter::from_fn(move || match pieces.next() {
        Some(Piece::Node(node)) => Some(format!("{}{node}", std::mem::replace(&mut comma, ",\n"))),
        Some(Piece::Tail(last)) => {
            tail = format!("],{}", last.strip_prefix('{').unwrap_or("}"));
            Some(String::new())
        }
        None => (!std::mem::replace(&mut ended, true)).then(|| std::mem::take(&mut tail)),
    });
    let headers = [(header::CONTENT_TYPE, "application/json")];
    (headers, body::stream(std::iter::once(open).chain(pieces))).into_response()
}

/// Maximum number of pods named.
const MAX_NAMED: usize = 3;

fn qualified_name(pod: &PodRef) -> String {
    format!("{}/{}", pod.namespace, pod.name)
}

impl LedgerCache {
    /// The pods on a node that have the devices which this one pins, as `namespace/name`.
    fn pinned_device_users(&self, node: &str, demand: &Demand) -> Vec<String> {
        let holders: Vec<PodUid> = self.read(|ledger| {
            let Some(state) = ledger.cluster().node(node) else {
                return Vec::new();
            };
            let pods = ledger.pods_on(node).filter(|pod| {
                let allocated = ledger.pod_entry(pod).map(|entry| &entry.allocated);
                let uses = allocated.and_then(AllocatedUse::uses);
                uses.is_some_and(|uses| blocks_pinned_device(state, demand, uses))
            });
            pods.cloned().collect()
        });
        // One lock at a time: whoever writes bound pods has the lock of the pending pods.
        let bound_pods: Vec<Option<String>> = {
            let bound_pods = self.bound_pods.0.read();
            let name = |uid| {
                bound_pods
                    .get(uid)
                    .map(|bound_pod| qualified_name(&bound_pod.pod))
            };
            holders.iter().map(name).collect()
        };
        let pending_pods = self.pending_pods.lock();
        let name = |(uid, bound_pod): (&PodUid, Option<String>)| {
            bound_pod
                .or_else(|| {
                    pending_pods
                        .get(uid)
                        .map(|waiting| qualified_name(&waiting.pod))
                })
                .unwrap_or_else(|| format!("the pod with uid {uid}"))
        };
        holders.iter().zip(bound_pods).map(name).collect()
    }

    /// ` (allocated to ns/pod)`, sorted; empty where no pod is found. Stops at the node where
    /// enough pods are found.
    pub(crate) fn pin_holders_text(&self, nodes: &[&str], demand: &Demand) -> String {
        let mut holders = BTreeSet::new();
        for node in nodes {
            holders.extend(self.pinned_device_users(node, demand));
            if holders.len() > MAX_NAMED {
                break;
            }
        }
        let mut holders: Vec<String> = holders.into_iter().collect();
        let more = if holders.len() > MAX_NAMED {
            ", ..."
        } else {
            ""
        };
        holders.truncate(MAX_NAMED);
        match holders.join(", ") {
            none if none.is_empty() => none,
            some => format!(" (allocated to {some}{more})"),
        }
    }

    /// Adds to each device that is refused as pinned which pods it is allocated to.
    pub(crate) fn add_pin_holders(&self, answer: &mut NodeAnswer, demand: &Demand) {
        let pinned = Reason::CardPinned.name();
        for gpu in answer.gpus.iter_mut().filter(|gpu| gpu.answer == pinned) {
            let allocated = self.pin_holders_text(&[answer.node.as_str()], demand);
            let bare = allocated.trim_start_matches(" (").trim_end_matches(')');
            bare.clone_into(&mut gpu.detail);
        }
    }
}

#[cfg(test)]
#[path = "explain_tests.rs"]
mod tests;
