//! The verbs of kube-scheduler's extender API v1: their routes, and the answers of filter,
//! prioritize and preempt as functions of the ledger and a call. [`crate::bind`] answers bind.
//!
//! They change only what is assumed for a pod, the record of its refusal, and whether it is left to
//! kube-scheduler's preemption. A call names nodes; one with Node objects is refused.

use std::borrow::Cow;
use std::sync::Arc;

use aliquot_core::{Demand, Excerpt, PodUid, Reason, Refusal, decide};
use aliquot_k8s::event::{EventNote, EventSender};
use aliquot_k8s::extender::{
    ExtenderArgs, ExtenderBindingArgs, ExtenderBindingResult, ExtenderFilterResult,
    ExtenderPreemptionArgs, ExtenderPreemptionResult, HostPriority, MetaPod,
};
use aliquot_k8s::view::PodView;
use aliquot_k8s::{disruption, pod};
use aliquot_serve::{Readiness, fail_point};
use axum::body::Bytes;
use axum::extract;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use serde::Serialize;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::bind::Binder;
use crate::leader::Leader;
use crate::ledger_cache::assumed::FilteredPod;
use crate::ledger_cache::gangs::GangName;
use crate::ledger_cache::pending_pods::{PendingPod, RefusalRecord};
use crate::ledger_cache::{LedgerCache, State};
use crate::metrics::Metrics;
use crate::pins;
use crate::preempt::{candidates, unix};

/// Largest body in bytes: 5,000 names are about 0.3 MB; a pod may have 3 MiB.
pub const MAX_BODY: usize = 16 << 20;

#[derive(Clone)]
pub struct ExtenderState {
    pub cache: Arc<LedgerCache>,
    pub leader: Leader,
    pub binder: Arc<Binder>,
    /// Bind tasks, which outlive their requests.
    pub tasks: TaskTracker,
    pub events: EventSender,
    pub metrics: Metrics,
    pub readiness: Readiness,
    /// Maximum number of nodes that filter returns.
    pub shortlist: usize,
}

pub fn router(verbs: ExtenderState) -> Router {
    Router::new()
        .route("/filter", post(serve_filter))
        .route("/prioritize", post(serve_prioritize))
        .route("/cpu-only/prioritize", post(serve_prioritize_cpu_only))
        .route("/preempt", post(serve_preempt))
        .route("/bind", post(serve_bind))
        .with_state(verbs)
}

impl ExtenderState {
    /// Answers and counts a call.
    fn answer<T>(
        &self,
        verb: &'static str,
        answer: impl FnOnce() -> Result<(Outcome, T), String>,
    ) -> Result<T, String> {
        let start = Instant::now();
        let answered = self.not_ready().map_or_else(answer, Err);
        let outcome = match &answered {
            Ok((Outcome::Ok, _)) => "ok",
            Ok((Outcome::Refused(refusal), _)) => {
                self.metrics.refused(refusal);
                "refused"
            }
            Err(_) => "error",
        };
        self.metrics.call(verb, outcome, start.elapsed());
        answered.map(|(_, answer)| answer)
    }

    fn read<'a>(&self, body: &'a [u8]) -> Result<Call<'a>, String> {
        Call::read(body, self.cache.settings())
    }

    fn not_ready(&self) -> Option<String> {
        let reasons = self.readiness.reasons();
        let why = || format!("aliquot-scheduler is not ready: {}", reasons.join(", "));
        (!reasons.is_empty()).then(why)
    }
}

async fn serve_filter(verbs: extract::State<ExtenderState>, body: Bytes) -> Response {
    // A node chosen in the first seconds of a term could not be bound, and each pod tried then
    // would wait for kube-scheduler's back-off.
    verbs.leader.settled().await;
    let answer = verbs.answer("filter", || {
        let call = verbs.read(&body)?;
        Ok(call.filter(&verbs.cache, &verbs.events, verbs.shortlist))
    });
    let answer = answer.unwrap_or_else(|error| ExtenderFilterResult {
        error,
        ..ExtenderFilterResult::default()
    });
    Json(answer).into_response()
}

async fn serve_prioritize(verbs: extract::State<ExtenderState>, body: Bytes) -> Response {
    json(verbs.answer("prioritize", || {
        let call = verbs.read(&body)?;
        Ok((Outcome::Ok, call.prioritize(&verbs.cache)))
    }))
}

async fn serve_prioritize_cpu_only(verbs: extract::State<ExtenderState>, body: Bytes) -> Response {
    json(verbs.answer("prioritize_cpu_only", || {
        let call = verbs.read(&body)?;
        Ok((Outcome::Ok, call.prioritize_cpu_only(&verbs.cache)))
    }))
}

async fn serve_preempt(verbs: extract::State<ExtenderState>, body: Bytes) -> Response {
    json(verbs.answer("preempt", || {
        Ok((Outcome::Ok, preempt(&verbs.cache, &body)?))
    }))
}

/// A parser's error repeats what it read.
fn unreadable(error: serde_json::Error) -> String {
    format!("cannot read the extender call: {}", Excerpt::of(error))
}

/// kube-scheduler sends whole objects instead.
fn missing(field: &str) -> String {
    format!(
        "the extender call has no {field}; expected: nodeCacheCapable: true of the extender in kube-scheduler's configuration"
    )
}

fn json(answer: Result<impl Serialize, String>) -> Response {
    match answer {
        Ok(answer) => Json(answer).into_response(),
        // The response type has no field for an error; kube-scheduler logs the body.
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, why).into_response(),
    }
}

async fn serve_bind(verbs: extract::State<ExtenderState>, body: Bytes) -> Response {
    let start = Instant::now();
    let args: Result<ExtenderBindingArgs, _> = serde_json::from_slice(&body);
    let mut outcome = "error";
    let answer = match (verbs.not_ready(), args) {
        (Some(why), _) => Err(why),
        (None, Err(error)) => Err(unreadable(error)),
        (None, Ok(args)) => {
            // A task of its own: it continues when kube-scheduler disconnects.
            let binder = verbs.binder.clone();
            let task = verbs.tasks.spawn(async move { binder.bind(&args).await });
            match task.await {
                Ok(Ok(())) => {
                    outcome = "ok";
                    Ok(())
                }
                Ok(Err(error)) => {
                    outcome = error.outcome();
                    Err(error.to_string())
                }
                Err(error) => Err(format!("the bind task failed: {error}")),
            }
        }
    };
    let error = answer.err().unwrap_or_default();
    verbs.metrics.call("bind", outcome, start.elapsed());
    Json(ExtenderBindingResult { error }).into_response()
}

/// A call, read.
pub struct Call<'a> {
    pod: PodView,
    uid: PodUid,
    demand: Demand,
    names: Vec<Cow<'a, str>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Answered.
    Ok,
    /// No node can take the pod.
    Refused(Refusal),
}

impl<'a> Call<'a> {
    pub fn read(body: &'a [u8], settings: &pod::Settings) -> Result<Self, String> {
        let args: ExtenderArgs<'a> = serde_json::from_slice(body).map_err(unreadable)?;
        let pod = args.pod.ok_or("the extender call has no Pod")?;
        let names = args.node_names.ok_or_else(|| missing("NodeNames"))?;
        let demand = pod::demand(&pod, settings)
            .map_err(|error| format!("the pod's GPU request is invalid: {error}"))?;
        Ok(Self {
            uid: pod.uid(),
            pod,
            demand,
            names,
        })
    }

    /// The nodes that can take the pod: the best `shortlist` of them; all, where kube-scheduler
    /// scores them by preferred affinity or spread constraints; only the best one for a member of a
    /// gang. From now on a share is assumed for the pod on the first of them.
    pub fn filter(
        self,
        cache: &LedgerCache,
        events: &EventSender,
        shortlist: usize,
    ) -> (Outcome, ExtenderFilterResult) {
        let names = &self.names;
        if !self.demand.requests_gpu() {
            return (Outcome::Ok, fits(names.iter().map(AsRef::as_ref)));
        }
        let (gang, namespace) = (GangName::read(&self.pod), self.pod.namespace());
        let most = if shortlist == 0 || gang.is_some() || self.pod.prefers_nodes() {
            names.len()
        } else {
            shortlist
        };
        let pod = FilteredPod {
            uid: &self.uid,
            namespace: &namespace,
            demand: &self.demand,
            gang: gang.as_ref(),
        };
        let mut state = cache.lock();
        state.assume_for_unfinished_gangs();
        let best = state.best(pod, names, most);
        let refusal = match best.and_then(|best| state.assume(pod, best)) {
            Ok(best) => {
                drop(state);
                fail_point::at("FilterFits");
                return (Outcome::Ok, fits(best.into_iter()));
            }
            Err(refusal) => refusal,
        };
        let text = refusal_text(&mut state, pod, names, &refusal);
        let waiting = PendingPod {
            offered: state.ledger.cluster().set(names),
            refusals: Some(RefusalRecord::new(text.clone(), Instant::now())),
            ..PendingPod::read(&self.pod, self.demand.clone(), true)
        };
        state.refuse(&self.uid, waiting);
        drop(state);
        tracing::info!(pod = self.pod.name(), %namespace, text, "refused on every node");
        events.send(EventNote {
            pod: self.pod.reference(),
            warning: true,
            reason: "Refused",
            action: "Scheduling",
            text: text.clone(),
        });
        fail_point::at("FilterRefuses");
        (Outcome::Refused(refusal), refused(names, text))
    }

    /// A score of 0 to 10 for each node.
    pub fn prioritize(self, cache: &LedgerCache) -> Vec<HostPriority> {
        let line = |(host, score): (&str, i64)| HostPriority {
            host: host.to_owned(),
            score,
        };
        if !self.demand.requests_gpu() {
            return self.names.iter().map(|name| line((name, 0))).collect();
        }
        let ranks = cache.lock().ranks(&self.uid, &self.demand, &self.names);
        ranks.into_iter().map(line).collect()
    }

    /// For pods that request no GPU, for which the second, opt-in extender entry asks:
    /// [`decide::cpu_only_ranks`]. Pods that request a GPU get 0 everywhere; the first entry scores
    /// them.
    pub fn prioritize_cpu_only(self, cache: &LedgerCache) -> Vec<HostPriority> {
        let ranks = if self.demand.requests_gpu() {
            vec![0; self.names.len()]
        } else {
            let typical = cache.policies().typical.clone();
            decide::cpu_only_ranks(&cache.snapshot(), &typical, self.demand.host, &self.names)
        };
        let lines = self.names.iter().zip(ranks);
        let line = |(host, score): (&Cow<'_, str>, i64)| HostPriority {
            host: host.to_string(),
            score,
        };
        lines.map(line).collect()
    }
}

/// The answer of preempt: kube-scheduler wants to evict pods and asks the extender.
///
/// A node stays in the answer if the pod fits there once the victims are gone, if needed with more
/// victims: filter would accept the node then. Calls for pods without our resources, and nodes
/// whose victims suffice, are answered unchanged.
pub fn preempt(cache: &LedgerCache, body: &[u8]) -> Result<ExtenderPreemptionResult, String> {
    let args: ExtenderPreemptionArgs = serde_json::from_slice(body).map_err(unreadable)?;
    let pod = args.pod.as_ref().ok_or("the extender call has no Pod")?;
    let demand = pod::demand(pod, cache.settings())
        .map_err(|error| format!("the pod's GPU request is invalid: {error}"))?;
    let uid = pod.uid();
    let nodes = args.node_name_to_meta_victims;
    let mut nodes = nodes.ok_or_else(|| missing("NodeNameToMetaVictims"))?;
    if demand.requests_gpu() {
        let priority = disruption::priority(pod);
        let now = unix();
        nodes.retain(|node, victims| {
            let chosen: Vec<PodUid> = victims.pods.iter().map(|p| p.uid.as_str().into()).collect();
            let request = (&demand, priority);
            let on_node = (&node.as_str().into(), &chosen[..]);
            let more = candidates::victims_beside(&cache.lock(), &uid, request, on_node, now);
            let helps = more.is_some();
            let more = more.unwrap_or_default().into_iter();
            victims.pods.extend(more.map(|uid| MetaPod {
                uid: uid.to_string(),
            }));
            helps
        });
        if !nodes.is_empty() && !cache.lock().leave_to_kube_scheduler(&uid, Instant::now()) {
            nodes.clear();
        }
    }
    Ok(ExtenderPreemptionResult {
        node_name_to_meta_victims: Some(nodes),
    })
}

/// The refusal, with what would help.
fn refusal_text<S: AsRef<str>>(
    state: &mut State,
    pod: FilteredPod<'_>,
    names: &[S],
    refusal: &Refusal,
) -> String {
    let mut text = decide::refusal_text(names.len(), refusal);
    if refusal.count(Reason::CardInsufficientMemory) > 0 {
        let cluster = state.ledger.cluster();
        text.push_str(&decide::nearest_text(cluster, pod.demand, names));
    }
    if refusal.count(Reason::GpuPinned) > 0 {
        let nodes = state.nodes_pinned_by_others(pod, names);
        let readers = Some(pod.namespace.as_str());
        text.push_str(&pins::users_text(state, &nodes, pod.demand, readers));
    }
    text
}

fn fits<'n>(names: impl Iterator<Item = &'n str>) -> ExtenderFilterResult {
    ExtenderFilterResult {
        node_names: Some(names.map(str::to_owned).collect()),
        ..ExtenderFilterResult::default()
    }
}

/// One entry with the reasons of all nodes.
fn refused<S: AsRef<str>>(names: &[S], text: String) -> ExtenderFilterResult {
    let first = names.iter().map(AsRef::as_ref).min().unwrap_or_default();
    ExtenderFilterResult {
        node_names: Some(Vec::new()),
        failed_and_unresolvable_nodes: Some([(first.to_owned(), text)].into()),
        ..ExtenderFilterResult::default()
    }
}

#[cfg(test)]
#[path = "extender_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "extender_gang_tests.rs"]
mod gang_tests;
