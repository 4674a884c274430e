//! `GET /explain/<namespace>/<pod>` and `GET /top`: why a pod is pending, and what is free.
//!
//! The answers are made from a snapshot, without a lock. The pod is fetched from the API server, as
//! nothing here keeps kube-scheduler's words about it. The decisions are core's.

use std::sync::Arc;

use aliquot_core::PodUid;
use aliquot_core::explain::{
    NodeAnswer, NodeTotals, PodAnswer, PodHeader, PodPlacement, RefusalHistory,
    SchedulingCondition, container_requests,
};
use aliquot_core::top::{DeviceAmount, TopAnswer};
use aliquot_k8s::view::PodView;
use aliquot_k8s::{disruption, pod};
use aliquot_serve::access_control::token;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::get;
use axum::{Json, Router};
use tokio::time::Instant;

use super::{HttpError, ReadModel, blocking, nodes_by_name, placement, slots_by_name};
use crate::ledger_cache::LedgerCache;
use crate::ledger_cache::pending_pods::{PendingPod, RefusalRecord};
use crate::pins;
use crate::unreadable::{UnreadablePod, add_unreadable_pods, unreadable_pods};

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
) -> Result<Json<PodAnswer>, HttpError> {
    model.ready()?;
    // An account may have the right to the answers about one namespace only.
    let reads_all = model.monitors.permit("/top", token(&headers)).await.is_ok();
    let pod = model.fetch(&namespace, &name).await?;
    let (uid, cache) = (pod.uid(), &model.cache);
    let conflict = |why: &str| {
        let why = format!("pod {namespace}/{name} {why}");
        (StatusCode::CONFLICT, why)
    };
    let waiting = if let Some(waiting) = cache.pending(&uid) {
        waiting
    } else {
        let demand = pod::demand(&pod, cache.settings())
            .map_err(|error| conflict(&format!("has an invalid GPU request: {error}")))?;
        if pod.is_finished() {
            return Err(conflict("has finished and has no GPU allocation"));
        }
        Arc::new(PendingPod::read(&pod, demand, false))
    };
    let asks = waiting.demand.requests_gpu();
    let placement = match (pod.node(), pod::allocated(&pod, cache.settings())) {
        (_, Some((node, allocated))) => Some(PodPlacement {
            node,
            confirmed: true,
            gpus: DeviceAmount::of_each(&allocated),
        }),
        (Some(node), None) if asks => {
            return Err(conflict(&format!(
                "requests a GPU share, but runs on node {node} without an allocation: another \
                 scheduler placed it"
            )));
        }
        (Some(node), None) => {
            return Err(conflict(&format!("requests no GPU; it is on node {node}")));
        }
        (None, None) if !asks => return Err(conflict("requests no GPU")),
        (None, None) => cache.read(|ledger| ledger.pod_entry(&uid).map(placement)),
    };
    let head = PodHeader {
        leads: model.leader.leads(),
        requests: container_requests(&waiting.demand),
        annotated: waiting.annotated,
        burst: waiting.demand.rules.burst,
        refused: waiting
            .refusals
            .as_ref()
            .map(|refusals| history(refusals, Instant::now())),
        condition: disruption::not_scheduled(&pod).map(|found| SchedulingCondition {
            reason: found.reason.clone().unwrap_or_default(),
            message: found.message.clone().unwrap_or_default(),
        }),
        placement,
        uid: uid.clone(),
        namespace,
        name,
    };
    let (nodes, tail) = if head.placement.is_some() {
        (Vec::new(), NodeTotals::default())
    } else {
        blocking(move || nodes(&model.cache, &uid, &waiting, reads_all)).await?
    };
    Ok(Json(PodAnswer { head, nodes, tail }))
}

async fn top(State(model): State<ReadModel>) -> Result<Json<TopAnswer>, HttpError> {
    model.ready()?;
    let answer = blocking(move || {
        let default_cores = model.cache.settings().defaults.cores;
        let unreadable = unreadable_pods(&model.cache);
        let nodes = nodes_by_name(model.cache.snapshot(), default_cores).map(|mut top| {
            let here = unreadable.values().filter(|found| found.node == top.node);
            top.unreadable = here.map(UnreadablePod::full_name).collect();
            top
        });
        TopAnswer {
            default_cores,
            leads: model.leader.leads(),
            nodes: nodes.collect(),
        }
    });
    answer.await.map(Json)
}

impl ReadModel {
    async fn fetch(&self, namespace: &str, name: &str) -> Result<PodView, HttpError> {
        let found = self.pods.find(namespace, name).await.map_err(|error| {
            let why = format!("cannot get pod {namespace}/{name}: {error}");
            (StatusCode::BAD_GATEWAY, why)
        })?;
        found.ok_or_else(|| {
            let why = format!("pod {namespace}/{name} not found");
            (StatusCode::NOT_FOUND, why)
        })
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

/// The answers for all nodes, by name, and their totals. Without `reads_all`, pods of other namespaces
/// are counted and not named.
fn nodes(
    cache: &LedgerCache,
    uid: &PodUid,
    waiting: &PendingPod,
    reads_all: bool,
) -> (Vec<NodeAnswer>, NodeTotals) {
    let namespace = waiting.pod.namespace.as_str();
    let readers = (!reads_all).then_some(namespace);
    // The node where a share is assumed for this pod counts without it.
    let (cluster, own, headroom) = cache.read(|ledger| {
        let headroom = ledger.headroom_for(uid, namespace);
        (
            ledger.cluster().clone(),
            ledger.node_without_assumed(uid),
            headroom,
        )
    });
    // kube-scheduler named no node to filter.
    let none_offered = waiting.refusals.is_none() && waiting.is_refused_by_kube_scheduler();
    let (demand, policies) = (&waiting.demand, cache.policies());
    let (mut answers, mut totals) = (Vec::new(), NodeTotals::default());
    for slot in slots_by_name(&cluster) {
        let Some((name, node)) = cluster.named(slot) else {
            continue;
        };
        let own = own.as_ref().filter(|(own, _)| *own == slot);
        let node = own.map_or(&**node, |(_, state)| state);
        let offered = !none_offered && waiting.offered.contains(slot);
        let left = headroom.as_ref();
        let (mut answer, refusal) =
            NodeAnswer::evaluate(name, node, demand, &policies, offered, left);
        pins::add_users(cache, &mut answer, demand, readers);
        add_unreadable_pods(cache, &mut answer, readers);
        totals.add(&answer, refusal.as_ref());
        answers.push(answer);
    }
    (answers, totals)
}

#[cfg(test)]
#[path = "explain_tests.rs"]
mod tests;
