//! The extender's verbs over HTTP: decode, decide, encode.
//!
//! Fed by: kube-scheduler (extender v1, `nodeCacheCapable: true`).
//! Must not: change anything in filter and prioritize but the mark that a pod
//! was refused.

use std::sync::Arc;
use std::time::Instant;

use aliquot_core::fit::Policies;
use aliquot_core::{Demand, PodUid};
use aliquot_k8s::event::{Note, Notes};
use aliquot_k8s::extender::{
    ExtenderArgs, ExtenderBindingArgs, ExtenderBindingResult, ExtenderFilterResult, HostPriority,
};
use aliquot_k8s::pod;
use aliquot_serve::{Readiness, body};
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use k8s_openapi::api::core::v1::Pod;
use tokio_util::task::TaskTracker;

use crate::bind::Binder;
use crate::books::Books;
use crate::decide::{self, Decision};
use crate::metrics::Metrics;
use crate::waiting::{reference, waiting};

/// Largest call: 5,000 names are about 0.3 MB; a pod may have 3 MiB.
const BODY: usize = 16 << 20;

/// What the verbs work on.
#[derive(Clone)]
pub struct Verbs {
    /// The books.
    pub books: Arc<Books>,
    /// The one writer.
    pub binder: Arc<Binder>,
    /// Bind tasks, which outlive their requests.
    pub tasks: TaskTracker,
    /// Events.
    pub notes: Notes,
    /// Counters.
    pub metrics: Metrics,
    /// Whether the books can be believed.
    pub readiness: Readiness,
    /// For pods that choose none.
    pub policies: Policies,
    /// Most nodes that filter answers.
    pub shortlist: usize,
}

/// The routes of the extender.
pub fn router(verbs: Verbs) -> Router {
    Router::new()
        .route("/filter", post(filter))
        .route("/prioritize", post(prioritize))
        .route("/bind", post(bind))
        .layer(body::limit(BODY))
        .with_state(verbs)
}

/// A call that can be decided.
struct Question<'a> {
    pod: Pod,
    names: Vec<std::borrow::Cow<'a, str>>,
    demand: Demand,
}

impl Verbs {
    fn question<'a>(&self, body: &'a [u8]) -> Result<Question<'a>, String> {
        let reasons = self.readiness.reasons();
        if !reasons.is_empty() {
            return Err(format!(
                "aliquot-scheduler is not ready: {}",
                reasons.join(", ")
            ));
        }
        let args: ExtenderArgs<'a> = serde_json::from_slice(body)
            .map_err(|error| format!("cannot read the extender call: {error}"))?;
        let pod = args.pod.ok_or("the extender call has no Pod")?;
        let names = args.node_names.ok_or(
            "the extender call has no NodeNames; the extender must be configured with nodeCacheCapable: true",
        )?;
        let demand = pod::demand(&pod, self.books.settings())
            .map_err(|error| format!("the pod's GPU request cannot be read: {error}"))?;
        Ok(Question { pod, names, demand })
    }

    fn filter(&self, body: &[u8]) -> (&'static str, ExtenderFilterResult) {
        let error = |error| ExtenderFilterResult {
            error,
            ..ExtenderFilterResult::default()
        };
        let Question { pod, names, demand } = match self.question(body) {
            Ok(question) => question,
            Err(why) => return ("error", error(why)),
        };
        let fits = |names| ExtenderFilterResult {
            node_names: Some(names),
            ..ExtenderFilterResult::default()
        };
        if !demand.asks() {
            return ("ok", fits(names.into_iter().map(Into::into).collect()));
        }
        let most = if wants_all(&pod) {
            names.len()
        } else {
            self.shortlist
        };
        let enlargements = self.books.enlargements();
        let decision = self
            .books
            .read(|ledger| decide::filter(ledger, &names, &demand, self.policies, most));
        match decision {
            Decision::Fits(names) => ("ok", fits(names)),
            Decision::Refused { nodes, refusal } => {
                let uid: PodUid = pod::uid(&pod);
                let text = decide::refusal_text(nodes, &refusal);
                tracing::info!(pod = ?pod.metadata.name, namespace = ?pod.metadata.namespace, text, "refused");
                self.books
                    .refused(&uid, waiting(&pod, demand, true), enlargements);
                self.notes.send(Note {
                    pod: reference(&pod),
                    warning: true,
                    reason: "Refused",
                    action: "Scheduling",
                    text: text.clone(),
                });
                // One entry carries the reasons of all nodes (design 4.2).
                let first = names.into_iter().min().unwrap_or_default().into_owned();
                let answer = ExtenderFilterResult {
                    node_names: Some(Vec::new()),
                    failed_and_unresolvable_nodes: Some([(first, text)].into()),
                    ..ExtenderFilterResult::default()
                };
                ("refused", answer)
            }
        }
    }
}

/// Preferred affinity and spread constraints are weighed by kube-scheduler
/// over all nodes, so such a pod gets all that fit.
fn wants_all(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let preferred = spec.affinity.as_ref().is_some_and(|affinity| {
        let node = affinity.node_affinity.as_ref();
        let near = affinity.pod_affinity.as_ref();
        let far = affinity.pod_anti_affinity.as_ref();
        node.is_some_and(|a| {
            a.preferred_during_scheduling_ignored_during_execution
                .is_some()
        }) || near.is_some_and(|a| {
            a.preferred_during_scheduling_ignored_during_execution
                .is_some()
        }) || far.is_some_and(|a| {
            a.preferred_during_scheduling_ignored_during_execution
                .is_some()
        })
    });
    preferred
        || spec
            .topology_spread_constraints
            .as_ref()
            .is_some_and(|c| !c.is_empty())
}

async fn filter(State(verbs): State<Verbs>, body: Bytes) -> Response {
    let start = Instant::now();
    let (outcome, answer) = verbs.filter(&body);
    verbs.metrics.call("filter", outcome, start.elapsed());
    Json(answer).into_response()
}

async fn prioritize(State(verbs): State<Verbs>, body: Bytes) -> Response {
    let start = Instant::now();
    let answer = verbs.question(&body).map(|question| {
        let ranks = verbs.books.read(|ledger| {
            decide::prioritize(ledger, &question.names, &question.demand, verbs.policies)
        });
        let ranks = ranks
            .into_iter()
            .map(|(host, score)| HostPriority { host, score });
        ranks.collect::<Vec<_>>()
    });
    let outcome = if answer.is_ok() { "ok" } else { "error" };
    verbs.metrics.call("prioritize", outcome, start.elapsed());
    match answer {
        Ok(ranks) => Json(ranks).into_response(),
        // The answer's type has no place for an error; kube-scheduler logs it.
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, why).into_response(),
    }
}

async fn bind(State(verbs): State<Verbs>, body: Bytes) -> Response {
    let start = Instant::now();
    let reasons = verbs.readiness.reasons();
    let args: Result<ExtenderBindingArgs, _> = serde_json::from_slice(&body);
    let error = match args {
        _ if !reasons.is_empty() => {
            format!("aliquot-scheduler is not ready: {}", reasons.join(", "))
        }
        Err(error) => format!("cannot read the extender call: {error}"),
        Ok(args) => {
            // A task of its own: it goes on when kube-scheduler hangs up.
            let binder = verbs.binder.clone();
            let task = verbs.tasks.spawn(async move { binder.bind(&args).await });
            match task.await {
                Ok(Ok(())) => String::new(),
                Ok(Err(error)) => error.to_string(),
                Err(error) => format!("the bind task ended early: {error}"),
            }
        }
    };
    let outcome = if error.is_empty() { "ok" } else { "error" };
    verbs.metrics.call("bind", outcome, start.elapsed());
    Json(ExtenderBindingResult { error }).into_response()
}
