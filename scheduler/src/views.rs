//! The scheduler's state as it is shown, read-only: why a pod is pending and what is free
//! ([`explain`]), the cluster page ([`page`]) with what [`monitors`] measure and the cluster's last [`hour`],
//! the ledger ([`ledger_report`]) and the gauges of `/metrics` ([`gauges`]).

pub mod explain;
pub mod gauges;
pub mod hour;
pub mod ledger_report;
pub mod monitors;
pub mod page;
mod page_state;

use std::sync::Arc;

use aliquot_core::explain::PodPlacement;
use aliquot_core::ledger::PodEntry;
use aliquot_core::top::{DeviceAmount, NodeTop};
use aliquot_core::{Cluster, Percent};
use aliquot_serve::Readiness;
use axum::Router;
use axum::http::StatusCode;

use self::hour::Hour;
use self::monitors::Monitors;
use crate::leader::Leader;
use crate::ledger_cache::LedgerCache;
use crate::pod_client::PodClient;

#[derive(Clone)]
pub struct ReadModel {
    pub cache: Arc<LedgerCache>,
    pub pods: PodClient,
    pub monitors: Monitors,
    pub hour: Hour,
    /// Whether this replica leads, so that kube-scheduler calls it.
    pub leader: Leader,
    pub readiness: Readiness,
}

/// Why there is no answer.
type HttpError = (StatusCode, String);

/// The routes of all views but the metrics.
pub fn router(model: ReadModel) -> Router {
    ledger_report::router(model.cache.clone())
        .merge(page::router(model.clone()))
        .merge(explain::router(model))
}

impl ReadModel {
    fn ready(&self) -> Result<(), HttpError> {
        let reasons = self.readiness.reasons();
        if reasons.is_empty() {
            return Ok(());
        }
        let why = format!("aliquot-scheduler is not ready: {}", reasons.join(", "));
        Err((StatusCode::SERVICE_UNAVAILABLE, why))
    }
}

/// The result of work that takes a while in a large cluster.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, HttpError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
}

fn slots_by_name(cluster: &Cluster) -> Vec<usize> {
    let mut slots: Vec<_> = cluster.iter().map(|(slot, name, _)| (name, slot)).collect();
    slots.sort_unstable();
    slots.into_iter().map(|(_, slot)| slot).collect()
}

/// Every node with an inventory. `cores` is the compute of a container that asks for none.
fn nodes_by_name(cluster: Cluster, cores: Percent) -> impl Iterator<Item = NodeTop> {
    let slots = slots_by_name(&cluster).into_iter();
    slots.filter_map(move |slot| {
        let (name, node) = cluster.named(slot)?;
        NodeTop::new(name, node, cores)
    })
}

fn placement(entry: &PodEntry) -> PodPlacement {
    PodPlacement {
        node: entry.node.clone(),
        confirmed: entry.is_confirmed(),
        gpus: DeviceAmount::of_each(&entry.allocated),
    }
}
