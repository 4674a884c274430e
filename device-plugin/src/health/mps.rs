//! The health of the node's MPS daemons, by the status files that their supervisor writes: which
//! devices are out of service, which pods lost their server, and which container each client belongs
//! to.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aliquot_core::GpuUuid;
use aliquot_core::inventory::Mode;
use aliquot_k8s::event::{EventNote, EventSender};
use aliquot_node_state::mps::{DaemonPhase, DaemonStatus};
use aliquot_node_state::processes;
use aliquot_node_state::state::StateDirectory;
use aliquot_nvml::Driver;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use crate::allocation::node_allocations::NodeAllocations;
use crate::gpus::device_failures;
use crate::metrics::{Metrics, MpsDevice, Tenant};
use crate::modes::mps::directory::{DaemonDirectory, DaemonDirectoryError};
use crate::pods::pod::Pod;

const POLL: Duration = Duration::from_millis(500);

pub struct MpsMonitor {
    root: PathBuf,
    driver: Arc<dyn Driver>,
    allocations: Arc<NodeAllocations>,
    notes: EventSender,
    metrics: Metrics,
}

#[derive(Default)]
struct MpsSnapshot {
    devices: BTreeMap<GpuUuid, DaemonHealth>,
    tenants: BTreeMap<Tenant, (i64, i64)>,
}

impl MpsMonitor {
    /// The monitor of the daemons whose directories are in the agent's state.
    pub fn new(
        state: &Path,
        driver: &Arc<dyn Driver>,
        allocations: &Arc<NodeAllocations>,
        notes: &EventSender,
        metrics: &Metrics,
    ) -> Self {
        Self {
            root: StateDirectory(state).mps(),
            driver: Arc::clone(driver),
            allocations: Arc::clone(allocations),
            notes: notes.clone(),
            metrics: metrics.clone(),
        }
    }

    pub async fn run(self, stop: CancellationToken) {
        let this = Arc::new(self);
        let mut current = MpsSnapshot::default();
        while !stop.is_cancelled() {
            let (monitor, last) = (Arc::clone(&this), current);
            match spawn_blocking(move || monitor.poll(&last)).await {
                Ok(next) => current = next,
                Err(_) => return,
            }
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(POLL) => {}
            }
        }
    }

    fn poll(&self, last: &MpsSnapshot) -> MpsSnapshot {
        let node = self.allocations.published.get();
        let gpus = node.inventory.gpus.iter();
        let devices = gpus.filter(|gpu| gpu.mode == Mode::Mps);
        let devices: BTreeMap<GpuUuid, DaemonHealth> = devices
            .map(|gpu| {
                let health = self.daemon_health(gpu.uuid.as_str());
                (gpu.uuid.clone(), health.after(last.devices.get(&gpu.uuid)))
            })
            .collect();
        let down = devices
            .iter()
            .filter_map(|(device, one)| Some((device.clone(), one.down.clone()?)));
        self.allocations.published.set_mps_down(down.collect());
        self.report_failures(&last.devices, &devices);
        let pods = self.allocations.pods.in_order();
        let mut tenants = BTreeMap::new();
        for (device, daemon) in devices.iter().filter(|(_, one)| !one.clients.is_empty()) {
            let clients = self.with_bytes(device, &daemon.clients);
            tenants.extend(clients_by_container(
                device,
                &clients,
                processes::container_of,
                &pods,
            ));
        }
        let current = MpsSnapshot { devices, tenants };
        self.update_metrics(last, &current);
        current
    }

    fn daemon_health(&self, device: &str) -> DaemonHealth {
        let directory = DaemonDirectory::new(&self.root, device);
        DaemonHealth::new(
            directory.status(),
            directory.last_checked(),
            SystemTime::now(),
        )
    }

    fn report_failures(
        &self,
        old: &BTreeMap<GpuUuid, DaemonHealth>,
        new: &BTreeMap<GpuUuid, DaemonHealth>,
    ) {
        let failures = new_failures(old, new);
        if failures.is_empty() {
            return;
        }
        let shares: Vec<_> = self.allocations.store.lock().all().cloned().collect();
        let pods = self.allocations.pods.in_order();
        for (device, failure) in failures {
            tracing::warn!(%device, ?failure, "a failure affects all MPS clients of a device");
            for pod in device_failures::pods_on(&device, &shares, &pods) {
                self.notes.send(failure_event(&pod, &device, failure));
            }
        }
    }

    /// Each client with the bytes that it uses, as the driver reports.
    fn with_bytes(&self, device: &GpuUuid, clients: &[u32]) -> Vec<(u32, u64)> {
        let used = self.driver.mps_clients(device.as_str());
        let used = used.unwrap_or_else(|error| {
            tracing::warn!(%device, %error, "cannot read the memory use of the MPS clients of a device");
            Vec::new()
        });
        let bytes = |pid: u32| {
            let found = used.iter().find(|(client, _)| *client == pid);
            found.map_or(0, |(_, bytes)| *bytes)
        };
        clients.iter().map(|pid| (*pid, bytes(*pid))).collect()
    }

    fn update_metrics(&self, last: &MpsSnapshot, now: &MpsSnapshot) {
        let label = |device: &GpuUuid| MpsDevice {
            gpu: device.to_string(),
        };
        for gone in last
            .devices
            .keys()
            .filter(|device| !now.devices.contains_key(*device))
        {
            self.metrics.mps_up.remove(&label(gone));
            self.metrics.mps_restarts.remove(&label(gone));
        }
        for (device, daemon) in &now.devices {
            let up = self.metrics.mps_up.get_or_create(&label(device)).clone();
            up.set(i64::from(daemon.down.is_none()));
            let restarts = self
                .metrics
                .mps_restarts
                .get_or_create(&label(device))
                .clone();
            restarts.set(i64::try_from(daemon.restarts).unwrap_or(i64::MAX));
        }
        for gone in last
            .tenants
            .keys()
            .filter(|one| !now.tenants.contains_key(*one))
        {
            self.metrics.mps_clients.remove(gone);
            self.metrics.mps_used.remove(gone);
        }
        for (tenant, (clients, bytes)) in &now.tenants {
            self.metrics.mps_clients.get_or_create(tenant).set(*clients);
            self.metrics.mps_used.get_or_create(tenant).set(*bytes);
        }
    }
}

/// A supervisor that has not checked for this long is gone, and its daemons ended with its
/// container.
const STALE: Duration = Duration::from_secs(15);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DaemonHealth {
    /// Why it is down; `None`: it is up.
    pub down: Option<String>,
    pub restarts: u64,
    /// Its losses and faults so far; `None`: no status could be read yet.
    failures: Option<(u64, u64)>,
    pub clients: Vec<u32>,
}

impl DaemonHealth {
    /// From the supervisor's status and the time of its last check.
    pub fn new(
        status: Result<Option<DaemonStatus>, DaemonDirectoryError>,
        last_checked: Option<SystemTime>,
        now: SystemTime,
    ) -> Self {
        let down = |why: &str| Self {
            down: Some(why.to_owned()),
            ..Self::default()
        };
        let status = match status {
            Ok(Some(status)) => status,
            Ok(None) => return down("the MPS supervisor (DaemonSet aliquot-mps) has not answered"),
            Err(error) => return down(&error.to_string()),
        };
        let age = last_checked.and_then(|last_checked| now.duration_since(last_checked).ok());
        let stale = age.is_some_and(|age| age > STALE);
        let clients = status.servers.iter().flat_map(|server| &server.clients);
        Self {
            down: match status.phase {
                DaemonPhase::Down(why) => Some(why),
                DaemonPhase::Running if stale => {
                    Some("the MPS supervisor (DaemonSet aliquot-mps) does not check it".to_owned())
                }
                DaemonPhase::Running => None,
            },
            restarts: status.restarts,
            failures: Some((status.losses, status.faults)),
            clients: clients.copied().collect(),
        }
    }

    /// What was counted in the `last` poll stands while the status cannot be read.
    fn after(mut self, last: Option<&Self>) -> Self {
        let counted = last.and_then(|last| last.failures);
        self.failures = self.failures.or(counted);
        self
    }
}

/// A failure that affects all clients of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientFailure {
    /// Their server exited.
    Lost,
    /// One of them faulted.
    Fault,
}

/// The failures since the last poll. A device that was unknown then has none.
pub fn new_failures(
    old: &BTreeMap<GpuUuid, DaemonHealth>,
    new: &BTreeMap<GpuUuid, DaemonHealth>,
) -> Vec<(GpuUuid, ClientFailure)> {
    let mut failures = Vec::new();
    for (device, now) in new {
        let before = old.get(device).and_then(|before| before.failures);
        let (Some((losses, faults)), Some(before)) = (now.failures, before) else {
            continue;
        };
        if losses > before.0 {
            failures.push((device.clone(), ClientFailure::Lost));
        }
        if faults > before.1 {
            failures.push((device.clone(), ClientFailure::Fault));
        }
    }
    failures
}

pub fn failure_event(pod: &Pod, device: &GpuUuid, failure: ClientFailure) -> EventNote {
    let (reason, text) = match failure {
        ClientFailure::Lost => (
            "MpsServerLost",
            format!(
                "the MPS server of {device} exited: programs of this pod that use it get errors and must restart; the MPS daemon is being restarted"
            ),
        ),
        ClientFailure::Fault => (
            "MpsSharedFault",
            format!(
                "a program on {device} caused a fatal GPU error: MPS shares errors, so every program on this GPU, including those of this pod, must restart"
            ),
        ),
    };
    device_failures::pod_event(pod, true, reason, text)
}

/// The number of clients of each container and the bytes that they use, by the cgroups of the
/// processes. Processes outside known containers are left out.
pub fn clients_by_container(
    device: &GpuUuid,
    clients: &[(u32, u64)],
    container_of: impl Fn(u32) -> Option<String>,
    pods: &[Arc<Pod>],
) -> BTreeMap<Tenant, (i64, i64)> {
    let mut found: BTreeMap<Tenant, (i64, i64)> = BTreeMap::new();
    for (pid, bytes) in clients {
        let Some(id) = container_of(*pid) else {
            continue;
        };
        let owner = pods.iter().find_map(|pod| Some((pod, pod.ids.get(&id)?)));
        let Some((pod, container)) = owner else {
            continue;
        };
        let tenant = Tenant {
            gpu: device.to_string(),
            namespace: pod.namespace.clone(),
            pod: pod.name.clone(),
            container: container.clone(),
        };
        let sum = found.entry(tenant).or_default();
        sum.0 += 1;
        sum.1 = sum
            .1
            .saturating_add(i64::try_from(*bytes).unwrap_or(i64::MAX));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn status(phase: DaemonPhase, losses: u64, faults: u64) -> DaemonStatus {
        DaemonStatus {
            losses,
            faults,
            ..testing::daemon_status(phase, None)
        }
    }

    fn daemon_health(losses: u64, faults: u64) -> DaemonHealth {
        let now = SystemTime::now();
        let status = status(DaemonPhase::Running, losses, faults);
        DaemonHealth::new(Ok(Some(status)), Some(now), now)
    }

    #[test]
    fn daemon_is_up_while_its_status_is_fresh() {
        let now = SystemTime::now();
        let ended = DaemonPhase::Down("it ended".to_owned());
        let unchecked = "the MPS supervisor (DaemonSet aliquot-mps) does not check it";
        let unanswered = "the MPS supervisor (DaemonSet aliquot-mps) has not answered";
        for (phase, age, expected) in [
            (Some(DaemonPhase::Running), 1, None),
            (Some(DaemonPhase::Running), 16, Some(unchecked)),
            (Some(ended), 1, Some("it ended")),
            (None, 1, Some(unanswered)),
        ] {
            let last_checked = now - Duration::from_secs(age);
            let found = phase.map(|phase| status(phase, 0, 0));
            let daemon_health = DaemonHealth::new(Ok(found), Some(last_checked), now);
            assert_eq!(daemon_health.down.as_deref(), expected);
        }
    }

    #[test]
    fn mps_11_reports_each_loss_once_with_pod_and_gpu() {
        let device = GpuUuid::from("GPU-a");
        let of =
            |(losses, faults)| BTreeMap::from([(device.clone(), daemon_health(losses, faults))]);
        for (old, new, expected) in [
            (None, (3, 1), &[][..]),
            (Some((3, 1)), (3, 1), &[]),
            (Some((3, 1)), (4, 1), &[ClientFailure::Lost]),
            (
                Some((3, 1)),
                (4, 2),
                &[ClientFailure::Lost, ClientFailure::Fault],
            ),
        ] {
            let old = old.map(of).unwrap_or_default();
            let found = new_failures(&old, &of(new))
                .into_iter()
                .map(|(_, failure)| failure);
            assert_eq!(found.collect::<Vec<_>>(), expected);
        }
        let event = failure_event(&testing::pod("u1"), &device, ClientFailure::Lost);
        let (pod, reason) = (event.pod.name.as_str(), event.reason);
        assert_eq!((pod, reason), ("u1", "MpsServerLost"));
        assert!(event.text.contains("GPU-a") && event.text.contains("must restart"));
    }

    #[test]
    fn unreadable_status_is_no_loss_and_hides_none() {
        let device = GpuUuid::from("GPU-a");
        let unreadable = |last: Option<&DaemonHealth>| {
            DaemonHealth::new(Ok(None), None, SystemTime::now()).after(last)
        };
        let before = daemon_health(3, 1);
        for (unread, now, expected) in [
            (unreadable(None), (3, 1), &[][..]),
            (unreadable(Some(&before)), (3, 1), &[]),
            (unreadable(Some(&before)), (4, 1), &[ClientFailure::Lost]),
        ] {
            let now = daemon_health(now.0, now.1);
            let of = |health: DaemonHealth| BTreeMap::from([(device.clone(), health)]);
            let found = new_failures(&of(unread), &of(now));
            let found: Vec<_> = found.into_iter().map(|(_, failure)| failure).collect();
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn mps_4_counts_clients_by_container() {
        let id = |digit: &str| digit.repeat(64);
        let mut pod = testing::pod("u1");
        pod.ids = BTreeMap::from([(id("a"), "main".to_owned()), (id("b"), "side".to_owned())]);
        let containers = BTreeMap::from([(1, id("a")), (2, id("a")), (3, id("b")), (4, id("c"))]);
        let clients = [(1, 10), (2, 20), (3, 5), (4, 7), (5, 9)];
        let found = clients_by_container(
            &"GPU-a".into(),
            &clients,
            |pid| containers.get(&pid).cloned(),
            &[Arc::new(pod)],
        );
        let found: Vec<_> = found
            .into_iter()
            .map(|(t, sums)| (t.container, sums))
            .collect();
        assert_eq!(
            found,
            [("main".to_owned(), (2, 30)), ("side".to_owned(), (1, 5))]
        );
    }
}
