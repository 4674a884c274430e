//! `GET /explain/<namespace>/<pod>` and `GET /top`: why a pod is pending, and what is free.
//!
//! The answers are written node by node from a snapshot, without a lock. The pod is fetched from the
//! API server, whose words the watch leaves out. The decisions are core's.

use std::collections::HashMap;
use std::sync::Arc;

use aliquot_core::cluster::NodeSet;
use aliquot_core::explain::{
    ContainerRequest, NodeAnswer, NodeTotals, PodHeader, RefusalHistory, SchedulingCondition,
    container_requests,
};
use aliquot_core::ledger::PodEntry;
use aliquot_core::quota::Headroom;
use aliquot_core::request_annotation::REQUEST;
use aliquot_core::score::Policies;
use aliquot_core::{Cluster, Demand, NodeState, PodUid};
use aliquot_k8s::{disruption, pod};
use aliquot_serve::access_control::token;
use aliquot_serve::body;
use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use k8s_openapi::api::core::v1::Pod;
use serde::Serialize;
use tokio::time::Instant;

use super::{HttpError, ReadModel, nodes_by_name, placement, slots_by_name};
use crate::ledger_cache::LedgerCache;
use crate::ledger_cache::pending_pods::{PendingPod, RefusalRecord, place};
use crate::pins;
use crate::unreadable::{UnreadablePod, add_unreadable_pods, unreadable_pods};

/// The routes.
pub fn router(model: ReadModel) -> Router {
    Router::new()
        .route("/explain/{namespace}/{pod}", get(pod_answer))
        .route("/top", get(top))
        .with_state(model)
}

async fn pod_answer(
    State(model): State<ReadModel>,
    Path((namespace, name)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<Response, HttpError> {
    model.ready()?;
    // An account may have the right to the answers about one namespace only.
    let reads_all = model.monitors.permit("/top", token(&headers)).await.is_ok();
    let pod = model.fetch(&namespace, &name).await?;
    let uid = pod::uid(&pod);
    let waiting = match model.cache.pending.get(&uid) {
        Some(waiting) => waiting,
        None => match model.state_of(&namespace, &name, &pod)? {
            FetchedPod::Pending(pending) => *pending,
            FetchedPod::Bound(head) => return Ok(json(head.as_ref(), std::iter::empty())),
        },
    };
    let entry = model.cache.read(|ledger| ledger.pod_entry(&uid).cloned());
    let asks = (container_requests(&waiting.demand), waiting.annotated);
    let mut head = model.head(&namespace, &name, &uid, asks);
    head.burst = waiting.demand.rules.burst;
    head.condition = disruption::not_scheduled(&pod).map(|found| SchedulingCondition {
        reason: found.reason.clone().unwrap_or_default(),
        message: found.message.clone().unwrap_or_default(),
    });
    head.refused = waiting
        .refusals
        .as_ref()
        .map(|refusals| history(refusals, Instant::now()));
    if let Some(entry) = entry {
        head.placement = Some(placement(&entry));
        return Ok(json(&head, std::iter::empty()));
    }
    let nodes = Nodes::of(model.cache.clone(), &uid, waiting, reads_all);
    Ok(json(&head, nodes))
}

async fn top(State(model): State<ReadModel>) -> Result<Response, HttpError> {
    #[derive(Serialize)]
    struct TopHeader {
        default_cores: aliquot_core::Percent,
        leads: bool,
    }
    model.ready()?;
    let cluster = model.cache.snapshot();
    let default_cores = model.cache.settings().defaults.cores;
    let unreadable = unreadable_pods(&model.cache);
    let lines = nodes_by_name(cluster, default_cores).map(move |mut top| {
        let here = unreadable.values().filter(|found| found.node == top.node);
        top.unreadable = here.map(UnreadablePod::full_name).collect();
        Piece::Node(text(&top))
    });
    let leads = model.leads();
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

impl ReadModel {
    fn head(
        &self,
        namespace: &str,
        name: &str,
        uid: &PodUid,
        (asks, annotated): (Vec<ContainerRequest>, bool),
    ) -> PodHeader {
        PodHeader {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: uid.clone(),
            leads: self.leads(),
            requests: asks,
            annotated,
            burst: None,
            refused: None,
            condition: None,
            placement: None,
        }
    }

    async fn fetch(&self, namespace: &str, name: &str) -> Result<Pod, HttpError> {
        let found = self.pods.find(namespace, name).await;
        let found = found.map_err(|error| {
            let why = format!("cannot get pod {namespace}/{name}: {error}");
            (StatusCode::BAD_GATEWAY, why)
        })?;
        let none = || {
            let why = format!("pod {namespace}/{name} not found");
            (StatusCode::NOT_FOUND, why)
        };
        found.ok_or_else(none)
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
        let (asks, burst) = (container_requests(&demand), demand.rules.burst);
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
                    resizing: None,
                };
                let asks = (asks, pod::annotation(pod, REQUEST).is_some());
                let mut answer = self.head(namespace, name, &pod::uid(pod), asks);
                answer.burst = burst;
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

fn history(record: &RefusalRecord, now: Instant) -> RefusalHistory {
    let seconds = |then| now.saturating_duration_since(then).as_secs_f64();
    RefusalHistory {
        times: record.times,
        first_seconds_ago: seconds(record.first),
        last_seconds_ago: seconds(record.last),
        text: record.text.clone(),
    }
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
    /// The namespace whose pods are named; all, without one.
    readers: Option<String>,
    tail: Option<NodeTotals>,
}

impl Nodes {
    fn of(cache: Arc<LedgerCache>, uid: &PodUid, waiting: PendingPod, reads_all: bool) -> Self {
        let namespace = waiting.pod.namespace.as_str();
        let (cluster, own, headroom) = cache.read(|ledger| {
            let headroom = ledger.headroom_for(uid, namespace);
            (
                ledger.cluster().clone(),
                ledger.node_seen_by_preemptor(uid),
                headroom,
            )
        });
        // kube-scheduler named no node to filter.
        let offered = if waiting.refusals.is_none() && waiting.is_refused_by_kube_scheduler() {
            cluster.set::<&str>(&[])
        } else {
            waiting.offered
        };
        let mut claimed = HashMap::new();
        for placement in cache.pending.claims_of_others(uid) {
            place(&mut claimed, &cluster, &placement);
        }
        Self {
            slots: slots_by_name(&cluster).into_iter(),
            cluster,
            demand: waiting.demand,
            policies: cache.policies(),
            cache,
            offered,
            claimed,
            own,
            headroom,
            readers: (!reads_all).then(|| namespace.to_owned()),
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
        let readers = self.readers.as_deref();
        pins::add_users(&self.cache, &mut answer, demand, readers);
        add_unreadable_pods(&self.cache, &mut answer, readers);
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

#[cfg(test)]
#[path = "explain_tests.rs"]
mod tests;
