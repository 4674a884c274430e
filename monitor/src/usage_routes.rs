//! Serves what is used now and what was used in the last hour.

use std::sync::Arc;
use std::time::Duration;

use aliquot_core::measured::NodeUsage;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Json, Router};
use parking_lot::Mutex;

use crate::exporter::Snapshot;
use crate::history::History;
use crate::usage;

/// The last usage, and the hour before. Clones share the same one.
#[derive(Clone, Debug, Default)]
pub struct UsageRecord(Arc<Mutex<(Option<NodeUsage>, History)>>);

impl UsageRecord {
    pub fn add(&self, snapshot: &Snapshot) {
        let (mut usage, waited) = usage::read(snapshot);
        let (last, history) = &mut *self.0.lock();
        history.add(Duration::from_nanos(snapshot.now), &mut usage, &waited);
        *last = Some(usage);
    }

    pub fn router(&self) -> Router {
        let (now, hour) = (self.clone(), self.clone());
        Router::new()
            .route(
                "/usage",
                get(async move || now.answer(|usage, _| Json(usage).into_response())),
            )
            .route(
                "/usage/history",
                get(async move || {
                    hour.answer(|usage, history| Json(history.report(&usage.node)).into_response())
                }),
            )
    }

    fn answer(&self, answer: impl Fn(&NodeUsage, &History) -> Response) -> Response {
        match &*self.0.lock() {
            (Some(usage), history) => answer(usage, history),
            (None, _) => (StatusCode::SERVICE_UNAVAILABLE, "no sample yet").into_response(),
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use axum::http::Request;
    use serde_json::{Value, json};
    use tower::ServiceExt as _;

    use super::*;
    use crate::exporter::tests::snapshot;

    async fn get(record: &UsageRecord, path: &str) -> (StatusCode, Value) {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let answer = record.router().oneshot(request).await.unwrap();
        let status = answer.status();
        let bytes = to_bytes(answer.into_body(), 1 << 20).await.unwrap();
        (status, serde_json::from_slice(&bytes).unwrap_or_default())
    }

    #[tokio::test]
    async fn serves_last_sample_and_last_hour() {
        let record = UsageRecord::default();
        let before = get(&record, "/usage").await.0;
        assert_eq!(before, StatusCode::SERVICE_UNAVAILABLE);
        for second in [3, 33] {
            let mut taken = snapshot(|_| (), |_| ());
            taken.now = second * 1_000_000_000;
            record.add(&taken);
        }
        let (status, now) = get(&record, "/usage").await;
        assert_eq!(status, StatusCode::OK);
        let expected = json!({
            "gpu": "GPU-a", "device": "GPU-a", "namespace": "default", "pod": "pod-u1",
            "container": "main", "limit": 4096, "memory": 3072, "sm": 0, "throttled": 0,
            "processes": 1, "peak": {"memory": 0, "sm": 0},
        });
        assert_eq!(now["shares"][0], expected);
        let (status, hour) = get(&record, "/usage/history").await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!((&hour["node"], &hour["times"]), (&json!("n1"), &json!([7])));
        assert_eq!(hour["shares"][0]["memory"], json!([3072]));
        assert_eq!(hour["gpus"][0]["temperature"], json!([50]));
    }
}
