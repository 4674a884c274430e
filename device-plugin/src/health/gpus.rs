//! Watches the driver and the node's pods, and publishes the health of the devices.
//! [`crate::gpus::device_failures`] decides what follows from a failure.

use std::collections::{BTreeSet, HashMap};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::{GpuUuid, inventory};
use aliquot_k8s::event::EventSender;
use aliquot_node_state::accepted::AcceptedAllocation;
use aliquot_nvml::{
    self as nvml, DeviceHealth, Driver, GpuEvent, NvmlError, XidAction, XidActions,
};
use parking_lot::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::allocation::node_allocations::NodeAllocations;
use crate::gpus::allocatable::AllocatedIds;
use crate::gpus::device_failures::{
    self, FailurePodPolicy, NodeFailures, ReportedFailures, UnlistedGpus,
};
use crate::gpus::inventory::GpuReadings;
use crate::health::errors::ErrorRecord;
use crate::metrics::{Metrics, set_count};

/// The longest wait for driver events; health is read after each.
const EVENT_WAIT: Duration = Duration::from_secs(2);
/// Polls between two full readings of the driver.
const FULL_READ_EVERY: u32 = 15;
/// The pods on a GPU are notified of an application error at most once in this time.
const APPLICATION_ERROR_INTERVAL: Duration = Duration::from_mins(1);
/// A call of the driver that takes longer is reported.
const LATE: Duration = Duration::from_secs(30);
const LATE_REASON: &str = "the NVIDIA driver does not answer: the health of the GPUs is unknown";
/// The NVML calls that read a GPU's MIG layout.
const LAYOUT_CALLS: [&str; 2] = ["nvmlDeviceGetMigMode", "nvmlDeviceGetGpuInstances"];

#[derive(Clone, Debug)]
pub struct FailureHandling {
    pub actions: XidActions,
    /// What happens to the pods on a GPU that is out of service.
    pub pods: FailurePodPolicy,
}

pub struct HealthMonitor {
    driver: Arc<dyn Driver>,
    errors: ErrorRecord,
    allocations: Arc<NodeAllocations>,
    handling: FailureHandling,
    notes: EventSender,
    metrics: Metrics,
    state: Mutex<Readings>,
}

/// The last readings. The lock is held while publishing, so that nothing older is published after
/// it.
struct Readings {
    facts: nvml::DriverInventory,
    health: Vec<DeviceHealth>,
    allocated_ids: AllocatedIds,
    reported: ReportedFailures,
    unlisted: UnlistedGpus,
    /// GPUs whose MIG layout the driver did not report; the last known one is used.
    unread_layouts: BTreeSet<String>,
    reported_errors: HashMap<(String, u64), Instant>,
}

impl HealthMonitor {
    /// Starts from these readings and publishes what follows from them. Blocks.
    pub fn new(
        driver: Arc<dyn Driver>,
        errors: ErrorRecord,
        allocations: Arc<NodeAllocations>,
        handling: FailureHandling,
        notes: EventSender,
        metrics: Metrics,
        (mut facts, health): (nvml::DriverInventory, Vec<DeviceHealth>),
    ) -> Arc<Self> {
        let unread = restore_layouts(&mut facts, &allocations.published.get().readings.facts);
        let state = Mutex::new(Readings {
            facts,
            health,
            allocated_ids: AllocatedIds::new(),
            reported: ReportedFailures::default(),
            unlisted: UnlistedGpus::default(),
            unread_layouts: unread,
            reported_errors: HashMap::new(),
        });
        let monitor = Arc::new(Self {
            driver,
            errors,
            allocations,
            handling,
            notes,
            metrics,
            state,
        });
        monitor.update_and_publish(|_| {});
        monitor
    }

    /// Reads the driver after each event and at an interval, until `stop`. Calls `report` while the
    /// driver does not answer.
    pub async fn watch_driver(
        self: Arc<Self>,
        report: impl Fn(Option<String>) + Send + Sync,
        stop: CancellationToken,
    ) {
        let mut round = 0;
        while !stop.is_cancelled() {
            let (this, full) = (Arc::clone(&self), round % FULL_READ_EVERY == 0);
            round += 1;
            let round = spawn_blocking(move || this.poll(full));
            match await_driver(round, &report, &stop).await {
                None | Some(Err(_)) => return,
                Some(Ok(Ok(()))) => {}
                Some(Ok(Err(error))) => {
                    tracing::warn!(%error, "the driver did not answer; the last readings stay in effect");
                    tokio::select! {
                        () = stop.cancelled() => {}
                        () = tokio::time::sleep(EVENT_WAIT) => {}
                    }
                }
            }
        }
    }

    /// Publishes again when pods change while replicas are advertised only because pods use them,
    /// until `stop`.
    pub async fn watch_pods(self: Arc<Self>, stop: CancellationToken) {
        let mut changes = self.allocations.pods.subscribe();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                last = changes.changed() => if last.is_err() { return },
            }
            changes.borrow_and_update();
            if self.allocations.published.get().has_retained_replicas() {
                let this = Arc::clone(&self);
                if spawn_blocking(move || this.update_and_publish(|_| {}))
                    .await
                    .is_err()
                {
                    return;
                }
            }
        }
    }

    /// Waits for events and handles them. Health comes first: it must neither wait for a full
    /// reading nor be missed because events are unavailable.
    fn poll(&self, full: bool) -> Result<(), NvmlError> {
        let events = self.driver.wait_events(EVENT_WAIT);
        let health = self.driver.health()?;
        let seen_events = events.as_deref().unwrap_or_default();
        self.errors.store(self.driver.errors());
        self.update_and_publish(|state| state.health = health);
        for event in seen_events {
            self.report_event(event);
        }
        let unread = {
            let state = self.state.lock();
            !state.unread_layouts.is_empty() || state.unlisted.is_pending(Instant::now())
        };
        let changed = seen_events
            .iter()
            .any(|event| !matches!(event, GpuEvent::Xid { ignored: true, .. }));
        if full || unread || changed || self.allocations.modes.take_layout_changed() {
            self.reread()?;
        }
        events.map(drop)
    }

    /// Rereads the GPUs and publishes them. Blocks.
    pub fn reread(&self) -> Result<(), NvmlError> {
        let mut facts = self.driver.inventory()?;
        let health = self.driver.health()?;
        self.update_and_publish(|state| {
            let unread = restore_layouts(&mut facts, &state.facts);
            if unread != state.unread_layouts {
                tracing::warn!(gpus = ?unread, "the driver did not report the MIG layout of these GPUs; the last known layout stays in effect");
            }
            (state.facts, state.health, state.unread_layouts) = (facts, health, unread);
        });
        Ok(())
    }

    /// Clears the failures of these GPUs at the administrator's request. Blocks.
    pub fn clear(&self, uuids: &[String]) -> Result<(), NvmlError> {
        for uuid in uuids {
            tracing::warn!(uuid, "the administrator declares this GPU healthy");
            self.driver.clear_errors(uuid);
        }
        self.errors.store(self.driver.errors());
        let health = self.driver.health()?;
        self.update_and_publish(|state| state.health = health);
        Ok(())
    }

    /// Publishes the state after `change`, and reports new failures.
    fn update_and_publish(&self, change: impl FnOnce(&mut Readings)) {
        let mut state = self.state.lock();
        change(&mut state);
        let diagnosis = |device| device_failures::diagnose(device, &self.handling.actions);
        let mut failed: Vec<_> = state.health.iter().filter_map(diagnosis).collect();
        for failure in &mut failed {
            failure.gpu = self.ledger_id(&failure.gpu, &state.facts);
        }
        let pods = self.allocations.pods.in_order();
        let shares = self.accepted();
        let gpu_of = |device: &GpuUuid| self.allocations.modes.gpu_of_instance(device);
        let unlisted = device_failures::unlisted(&state.facts, &shares, &pods, gpu_of);
        failed.extend(state.unlisted.failed(unlisted, Instant::now()));
        set_count(&self.metrics.unhealthy_gpus, failed.len());
        let synced = self.allocations.pods.synced();
        match self.allocations.entries() {
            Ok(entries) => {
                state.allocated_ids = device_failures::allocated_ids(&entries, &pods, synced);
            }
            Err(error) => {
                tracing::warn!(%error, "cannot read which device ids are allocated; the last known ones stay in effect");
            }
        }
        let node = self.allocations.published.get();
        let devices =
            device_failures::affected_devices(&failed, &node.inventory.gpus, self.handling.pods);
        let affected = device_failures::affected_pods(&devices, &shares, &pods);
        let evict = match self.handling.pods {
            FailurePodPolicy::Keep => Vec::new(),
            FailurePodPolicy::Evict | FailurePodPolicy::Drain => {
                device_failures::evictions(&affected)
            }
        };
        let drained = device_failures::drain_trigger(&failed, self.handling.pods);
        let drained = drained.map(|failure| {
            format!(
                "the node is being drained because of {}: {}",
                failure.gpu, failure.cause
            )
        });
        let readings = GpuReadings {
            facts: state.facts.clone(),
            health: state.health.clone(),
            failures: NodeFailures {
                devices: failed,
                evict,
                drain_reason: drained,
            },
        };
        let published = &self.allocations.published;
        published.set_readings(readings, state.allocated_ids.clone());
        for note in state
            .reported
            .new_events(&affected, &pods, self.handling.pods)
        {
            tracing::warn!(pod = note.pod.name, reason = note.reason, text = note.text);
            self.notes.send(note);
        }
    }

    /// The id under which a GPU or MIG instance is in the ledger.
    fn ledger_id(&self, uuid: &GpuUuid, facts: &nvml::DriverInventory) -> GpuUuid {
        let published = self.allocations.published.get();
        let is_allocatable = published.inventory.gpu(uuid).is_some();
        let made = device_failures::dynamic_mig_id(uuid, facts).filter(|_| !is_allocatable);
        made.unwrap_or_else(|| uuid.clone())
    }

    fn accepted(&self) -> Vec<AcceptedAllocation> {
        self.allocations.store.lock().all().cloned().collect()
    }

    /// Logs and counts an event, and notifies the pods of an error that leaves their GPU in
    /// service. [`Self::update_and_publish`] notifies pods of a failed GPU.
    fn report_event(&self, event: &GpuEvent) {
        tracing::warn!(?event, "driver event");
        let GpuEvent::Xid { uuid, code, .. } = event else {
            return;
        };
        let action = self.handling.actions.of(*code);
        self.metrics.count_xid(uuid, *code, action.name());
        if action != XidAction::RestartApplication {
            return;
        }
        let now = Instant::now();
        let mut state = self.state.lock();
        state
            .reported_errors
            .retain(|_, last| now - *last < APPLICATION_ERROR_INTERVAL);
        if state.reported_errors.contains_key(&(uuid.clone(), *code)) {
            return;
        }
        state.reported_errors.insert((uuid.clone(), *code), now);
        drop(state);
        let node = self.allocations.published.get();
        let gpu = self.ledger_id(&uuid.as_str().into(), &node.readings.facts);
        let by_mps =
            |device: &inventory::Gpu| device.uuid == gpu && device.mode == inventory::Mode::Mps;
        let shared = node.inventory.gpus.iter().any(by_mps);
        for pod in
            device_failures::pods_on(&gpu, &self.accepted(), &self.allocations.pods.in_order())
        {
            self.notes.send(device_failures::application_error(
                &pod, &gpu, *code, shared,
            ));
        }
    }
}

/// The result of `call`, a call of the driver, which has no deadline of its own; `None` when `stop`
/// is cancelled first. `report` gets the reason while the driver is late, and `None` once it has
/// answered.
async fn await_driver<T>(
    call: impl Future<Output = T>,
    report: &impl Fn(Option<String>),
    stop: &CancellationToken,
) -> Option<T> {
    let mut call = pin!(call);
    let mut late = false;
    loop {
        let waited = tokio::select! {
            () = stop.cancelled() => return None,
            waited = timeout(LATE, &mut call) => waited,
        };
        if let Ok(found) = waited {
            if late {
                tracing::warn!("the driver answers again");
                report(None);
            }
            return Some(found);
        }
        tracing::error!("{LATE_REASON}");
        report(Some(LATE_REASON.to_owned()));
        late = true;
    }
}

/// Copies from `last` the MIG layout of the GPUs for which `now` has none because a call failed: an
/// empty layout would remove every instance from the inventory. Returns those GPUs. A GPU that the
/// driver no longer lists stays out.
fn restore_layouts(
    now: &mut nvml::DriverInventory,
    last: &nvml::DriverInventory,
) -> BTreeSet<String> {
    let failed = now
        .notes
        .iter()
        .filter(|note| LAYOUT_CALLS.contains(&note.call));
    let gpus: BTreeSet<String> = failed.map(|note| note.gpu.clone()).collect();
    for gpu in now.gpus.iter_mut().filter(|one| gpus.contains(&one.uuid)) {
        if let Some(known) = last.gpus.iter().find(|one| one.uuid == gpu.uuid) {
            gpu.mig = known.mig;
            gpu.layout.clone_from(&known.layout);
        }
    }
    gpus
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use aliquot_nvml::{DriverInventory, MigLayout, MigMode, Note};

    use super::*;
    use crate::testing::{facts, reported_instance};

    #[tokio::test(start_paused = true)]
    async fn reports_driver_that_does_not_answer() {
        let check = async |takes: Duration, expected: &[bool]| {
            let reported = Mutex::new(Vec::new());
            let report = |reason: Option<String>| reported.lock().push(reason.is_some());
            let stop = CancellationToken::new();
            let call = timeout(takes, pending::<()>());
            let came = await_driver(call, &report, &stop).await;
            assert!(came.is_some(), "{takes:?}");
            assert_eq!(*reported.lock(), expected, "{takes:?}");
        };
        check(LATE / 2, &[]).await;
        check(LATE * 3 / 2, &[true, false]).await;
        check(LATE * 5 / 2, &[true, true, false]).await;
        let stop = CancellationToken::new();
        stop.cancel();
        assert_eq!(await_driver(pending::<()>(), &|_| {}, &stop).await, None);
    }

    fn partitioned() -> DriverInventory {
        let mut facts = facts(&["GPU-a", "GPU-b"]);
        for gpu in &mut facts.gpus {
            gpu.mig = MigMode {
                capable: true,
                enabled: true,
            };
            gpu.layout.instances = vec![reported_instance(6, "MIG-1")];
        }
        facts
    }

    #[test]
    fn keeps_mig_layout_after_read_error() {
        let check = |call: &'static str, restored: bool| {
            let mut now = partitioned();
            now.gpus[0].layout = MigLayout::default();
            now.gpus[1].layout = MigLayout::default();
            now.notes.push(Note {
                gpu: "GPU-a".to_owned(),
                call,
                problem: "Unknown".to_owned(),
            });
            let gpus_to_retry = restore_layouts(&mut now, &partitioned());
            let instances: Vec<usize> = now.gpus.iter().map(|c| c.layout.instances.len()).collect();
            assert_eq!(instances, [usize::from(restored), 0], "{call}");
            assert_eq!(gpus_to_retry.contains("GPU-a"), restored);
        };
        check("nvmlDeviceGetGpuInstances", true);
        check("nvmlDeviceGetMigMode", true);
        check("nvmlDeviceGetMinorNumber", false);
    }
}
