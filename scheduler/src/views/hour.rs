//! The last hour of the whole cluster, a point for every half minute, in memory only.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::top::DeviceAmount;
use aliquot_core::{Cluster, Demand, Memory, Mib, Percent, PodUid, Stage};
use aliquot_serve::Readiness;
use parking_lot::Mutex;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::monitors::Monitors;
use crate::ledger_cache::LedgerCache;
use crate::ticks::Ticks;

const INTERVAL: Duration = Duration::from_secs(30);
const POINTS: usize = 120;

/// Clones share the points.
#[derive(Clone, Default)]
pub struct Hour(Arc<Mutex<VecDeque<Point>>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Point {
    /// `None` while nobody looks: monitors are asked for viewers only.
    used: Option<DeviceAmount>,
    allocated: DeviceAmount,
    /// What is allocated, and what pending pods request.
    requested: DeviceAmount,
    waiting: usize,
}

/// Adds points until the program stops.
pub async fn run(
    hour: Hour,
    cache: Arc<LedgerCache>,
    monitors: Monitors,
    readiness: Readiness,
    stop: CancellationToken,
) {
    let mut ticks = Ticks::every(INTERVAL, &stop);
    while ticks.next().await {
        if readiness.reasons().is_empty() {
            let point = Point::now(&cache, &monitors).await;
            let mut points = hour.0.lock();
            points.truncate(POINTS - 1);
            points.push_front(point);
        }
    }
}

impl Hour {
    /// The oldest first.
    pub(super) fn points(&self) -> Vec<Point> {
        self.0.lock().iter().rev().copied().collect()
    }
}

impl Point {
    async fn now(cache: &LedgerCache, monitors: &Monitors) -> Self {
        let cluster = cache.snapshot();
        let mut allocated = DeviceAmount::default();
        for (.., node) in cluster.iter() {
            for place in 0..node.devices.len() {
                allocated = allocated.plus(node.counted_once(place).used.into());
            }
        }
        let (asked, waiting) = asked(cache, &cluster);
        Self {
            used: monitors.used(&cluster).await,
            allocated,
            requested: allocated.plus(asked),
            waiting,
        }
    }
}

/// The memory and compute that pending pods request beyond what the ledger already has for them, and
/// how many are pending. A percentage of memory counts as one of the largest GPU.
pub(super) fn asked(cache: &LedgerCache, cluster: &Cluster) -> (DeviceAmount, usize) {
    let devices = cluster.iter().flat_map(|(.., node)| &node.devices);
    let largest = devices.map(|device| device.scaled).max();
    let largest = largest.unwrap_or_default();
    let state = cache.lock();
    let (pods, ledger) = (&state.pending, &state.ledger);
    let has_none = |uid: &PodUid| ledger.pod_entry(uid).is_none() && ledger.assumed(uid).is_none();
    let all = pods.iter().filter(|(uid, _)| has_none(uid));
    let all = all.map(|(_, one)| requested(&one.demand, largest));
    let sum = all.fold(DeviceAmount::default(), DeviceAmount::plus);
    (sum, pods.len())
}

/// What a pod requests while its app containers run.
fn requested(demand: &Demand, largest: Mib) -> DeviceAmount {
    let containers = demand.containers.iter();
    let running = containers.filter(|container| container.stage != Stage::Init);
    let mut sum = DeviceAmount::default();
    for request in running.flat_map(|container| &container.requests) {
        let memory = match request.memory {
            Memory::Mib(memory) => memory,
            Memory::Share(part) => largest.share(part),
        };
        sum = sum.plus(DeviceAmount {
            memory: Mib(memory.0.saturating_mul(request.count.into())),
            cores: Percent(request.cores.0.saturating_mul(request.count)),
            ..DeviceAmount::default()
        });
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod_client::tests::api_server;
    use crate::views::page_state;

    #[tokio::test]
    async fn point_has_what_is_allocated_and_what_pending_pods_request_beyond_it() {
        let cache = page_state::tests::cache();
        let monitors = Monitors::new(api_server().0, None, None);
        let point = Point::now(&cache, &monitors).await;
        let memory = (point.allocated.memory, point.requested.memory);
        assert_eq!(memory, (Mib(600), Mib(1100)));
        assert_eq!((point.used, point.waiting), (None, 1));
        // Its Binding is under way.
        let demand = cache.pending(&"p".into()).unwrap().demand.clone();
        let reserved = cache.reserve(&"p".into(), &"d".into(), &"b".into(), &demand);
        assert!(reserved.is_ok());
        let point = Point::now(&cache, &monitors).await;
        let memory = (point.allocated.memory, point.requested.memory);
        assert_eq!(memory, (Mib(1100), Mib(1100)));
    }
}
