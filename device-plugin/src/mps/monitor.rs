//! Watches the status files of the node's MPS daemons and publishes what follows: devices out of
//! service, events on pods that lost their server, metrics. [`super::health`] decides what a status
//! means.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aliquot_core::GpuUuid;
use aliquot_core::inventory::Mode;
use aliquot_k8s::event::EventSender;
use aliquot_nvml::Driver;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use super::directory::DaemonDirectory;
use super::health::{self, DaemonHealth};
use super::supervisor;
use crate::device_failures;
use crate::metrics::{Metrics, MpsDevice, Tenant};
use crate::prestart::PreStart;

/// The polling interval.
const POLL: Duration = Duration::from_millis(500);

/// The monitor of this node's MPS daemons.
pub struct MpsMonitor {
    root: PathBuf,
    driver: Arc<dyn Driver>,
    prestart: Arc<PreStart>,
    notes: EventSender,
    metrics: Metrics,
}

/// What the last poll found.
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
        prestart: &Arc<PreStart>,
        notes: &EventSender,
        metrics: &Metrics,
    ) -> Self {
        Self {
            root: supervisor::root(state),
            driver: Arc::clone(driver),
            prestart: Arc::clone(prestart),
            notes: notes.clone(),
            metrics: metrics.clone(),
        }
    }

    /// Polls until `stop`.
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
        let node = self.prestart.published.get();
        let gpus = node.inventory.gpus.iter();
        let devices = gpus.filter(|gpu| gpu.mode == Mode::Mps);
        let devices: BTreeMap<GpuUuid, DaemonHealth> = devices
            .map(|gpu| (gpu.uuid.clone(), self.daemon_health(gpu.uuid.as_str())))
            .collect();
        let down = devices.iter();
        let down = down.filter_map(|(device, one)| Some((device.clone(), one.down.clone()?)));
        self.prestart.published.set_mps_down(down.collect());
        self.report_failures(&last.devices, &devices);
        let pods = self.prestart.pods.in_order();
        let mut tenants = BTreeMap::new();
        for (device, daemon) in devices.iter().filter(|(_, one)| !one.clients.is_empty()) {
            let clients = self.with_bytes(device, &daemon.clients);
            tenants.extend(health::clients_by_container(
                device,
                &clients,
                container_of,
                &pods,
            ));
        }
        let current = MpsSnapshot { devices, tenants };
        self.update_metrics(last, &current);
        current
    }

    fn daemon_health(&self, device: &str) -> DaemonHealth {
        let directory = DaemonDirectory::new(&self.root, device);
        DaemonHealth::of(
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
        let failures = health::new_failures(old, new);
        if failures.is_empty() {
            return;
        }
        let shares: Vec<_> = self.prestart.store.lock().all().cloned().collect();
        let pods = self.prestart.pods.in_order();
        for (device, failure) in failures {
            tracing::warn!(%device, ?failure, "a failure affects all MPS clients of a device");
            for pod in device_failures::pods_on(&device, &shares, &pods) {
                self.notes
                    .send(health::failure_event(&pod, &device, failure));
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

fn container_of(pid: u32) -> Option<String> {
    let cgroups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    health::container_of_cgroup(&cgroups).map(str::to_owned)
}
