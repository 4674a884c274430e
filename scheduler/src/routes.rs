//! The verbs of kube-scheduler's extender API v1 over HTTP. [`crate::verbs`] and [`crate::bind`]
//! decide.

use std::sync::Arc;
use std::time::Instant;

use aliquot_k8s::event::EventSender;
use aliquot_k8s::extender::{
    ExtenderBindingArgs, ExtenderBindingResult, ExtenderFilterResult, HostPriority,
};
use aliquot_serve::{Readiness, body};
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use tokio_util::task::TaskTracker;

use crate::bind::Binder;
use crate::leader::Leader;
use crate::ledger_cache::LedgerCache;
use crate::metrics::Metrics;
use crate::preempt::verb;
use crate::verbs::{Call, Outcome};

/// Largest body in bytes: 5,000 names are about 0.3 MB; a pod may have 3 MiB.
const MAX_BODY: usize = 16 << 20;

/// The state of the handlers.
#[derive(Clone)]
pub struct ExtenderState {
    /// The ledger.
    pub cache: Arc<LedgerCache>,
    /// Whether this replica may bind.
    pub leader: Leader,
    /// Writes Bindings.
    pub binder: Arc<Binder>,
    /// Bind tasks, which outlive their requests.
    pub tasks: TaskTracker,
    /// Events.
    pub events: EventSender,
    /// Counters.
    pub metrics: Metrics,
    /// Whether the ledger is up to date.
    pub readiness: Readiness,
    /// Maximum number of nodes that filter returns.
    pub shortlist: usize,
}

/// The routes of the extender.
pub fn router(verbs: ExtenderState) -> Router {
    Router::new()
        .route("/filter", post(filter))
        .route("/prioritize", post(prioritize))
        .route("/cpu-only/prioritize", post(prioritize_cpu_only))
        .route("/preempt", post(preempt))
        .route("/bind", post(bind))
        .layer(body::limit(MAX_BODY))
        .with_state(verbs)
}

impl ExtenderState {
    /// Reads, answers and counts a call.
    fn answer<T>(
        &self,
        verb: &'static str,
        body: &[u8],
        answer: impl FnOnce(Call<'_>) -> (Outcome, T),
    ) -> Result<T, String> {
        let start = Instant::now();
        let reasons = self.readiness.reasons();
        let call = if reasons.is_empty() {
            Call::read(body, self.cache.settings())
        } else {
            Err(not_ready(&reasons))
        };
        let answered = call.map(answer);
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
}

fn not_ready(reasons: &[String]) -> String {
    format!("aliquot-scheduler is not ready: {}", reasons.join(", "))
}

async fn filter(State(verbs): State<ExtenderState>, body: Bytes) -> Response {
    // A node chosen in the first seconds of a term could not be bound, and each pod tried then
    // would wait for kube-scheduler's back-off.
    verbs.leader.settled().await;
    let answer = verbs.answer("filter", &body, |call| {
        call.filter(&verbs.cache, &verbs.events, verbs.shortlist)
    });
    let answer = answer.unwrap_or_else(|error| ExtenderFilterResult {
        error,
        ..ExtenderFilterResult::default()
    });
    Json(answer).into_response()
}

async fn prioritize(State(verbs): State<ExtenderState>, body: Bytes) -> Response {
    ranks(verbs.answer("prioritize", &body, |call| {
        (Outcome::Ok, call.prioritize(&verbs.cache))
    }))
}

async fn prioritize_cpu_only(State(verbs): State<ExtenderState>, body: Bytes) -> Response {
    ranks(verbs.answer("prioritize_cpu_only", &body, |call| {
        (Outcome::Ok, call.prioritize_cpu_only(&verbs.cache))
    }))
}

async fn preempt(State(verbs): State<ExtenderState>, body: Bytes) -> Response {
    let start = Instant::now();
    let reasons = verbs.readiness.reasons();
    let answer = if reasons.is_empty() {
        verb::answer(&verbs.cache, &body)
    } else {
        Err(not_ready(&reasons))
    };
    let outcome = if answer.is_ok() { "ok" } else { "error" };
    verbs.metrics.call("preempt", outcome, start.elapsed());
    match answer {
        Ok(answer) => Json(answer).into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, why).into_response(),
    }
}

fn ranks(answer: Result<Vec<HostPriority>, String>) -> Response {
    match answer {
        Ok(ranks) => Json(ranks).into_response(),
        // The response type has no field for an error; kube-scheduler logs the body.
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, why).into_response(),
    }
}

async fn bind(State(verbs): State<ExtenderState>, body: Bytes) -> Response {
    let start = Instant::now();
    let reasons = verbs.readiness.reasons();
    let args: Result<ExtenderBindingArgs, _> = serde_json::from_slice(&body);
    let mut outcome = "error";
    let answer = match args {
        _ if !reasons.is_empty() => Err(not_ready(&reasons)),
        Err(error) => Err(format!("cannot read the extender call: {error}")),
        Ok(args) => {
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
