//! Watches what the keeper writes of the node's MPS daemons, and publishes what follows: units
//! that are out of service, events on pods that lost their server, metrics.
//!
//! Fed by: status files, the driver's process lists. Must not: decide ([`super::standing`] does);
//! start or end a daemon.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aliquot_core::GpuUuid;
use aliquot_core::inventory::Mode;
use aliquot_k8s::event::Notes;
use aliquot_nvml::Driver;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use super::folder::Folder;
use super::keeper;
use super::standing::{self, Standing};
use crate::metrics::{Metrics, MpsUnit, Tenant};
use crate::prestart::PreStart;
use crate::sick;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(500);

/// The watch of this node's daemons.
pub struct Watch {
    root: PathBuf,
    driver: Arc<dyn Driver>,
    prestart: Arc<PreStart>,
    notes: Notes,
    metrics: Metrics,
}

/// What was shown at the last look.
#[derive(Default)]
struct Shown {
    units: BTreeMap<GpuUuid, Standing>,
    tenants: BTreeMap<Tenant, (i64, i64)>,
}

impl Watch {
    /// The watch of the daemons whose folders are in the agent's state.
    pub fn new(
        state: &Path,
        driver: &Arc<dyn Driver>,
        prestart: &Arc<PreStart>,
        notes: &Notes,
        metrics: &Metrics,
    ) -> Self {
        Self {
            root: keeper::root(state),
            driver: Arc::clone(driver),
            prestart: Arc::clone(prestart),
            notes: notes.clone(),
            metrics: metrics.clone(),
        }
    }

    /// Looks until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let this = Arc::new(self);
        let mut shown = Shown::default();
        while !stop.is_cancelled() {
            let (looking, last) = (Arc::clone(&this), shown);
            match spawn_blocking(move || looking.look(&last)).await {
                Ok(next) => shown = next,
                Err(_) => return,
            }
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }

    fn look(&self, last: &Shown) -> Shown {
        let node = self.prestart.published.get();
        let gpus = node.inventory.gpus.iter();
        let units = gpus.filter(|gpu| gpu.mode == Mode::Mps);
        let units: BTreeMap<GpuUuid, Standing> = units
            .map(|gpu| (gpu.uuid.clone(), self.standing(gpu.uuid.as_str())))
            .collect();
        let down = units.iter();
        let down = down.filter_map(|(unit, one)| Some((unit.clone(), one.down.clone()?)));
        self.prestart.published.daemons(down.collect());
        self.tell(&last.units, &units);
        let pods = self.prestart.pods.in_order();
        let mut tenants = BTreeMap::new();
        for (unit, standing) in units.iter().filter(|(_, one)| !one.clients.is_empty()) {
            let clients = self.with_bytes(unit, &standing.clients);
            tenants.extend(standing::tenants(unit, &clients, container_of, &pods));
        }
        let shown = Shown { units, tenants };
        self.show(last, &shown);
        shown
    }

    fn standing(&self, unit: &str) -> Standing {
        let folder = Folder::new(&self.root, unit);
        Standing::of(folder.status(), folder.looked(), SystemTime::now())
    }

    fn tell(&self, old: &BTreeMap<GpuUuid, Standing>, new: &BTreeMap<GpuUuid, Standing>) {
        let news = standing::news(old, new);
        if news.is_empty() {
            return;
        }
        let shares: Vec<_> = self.prestart.store.lock().all().cloned().collect();
        let pods = self.prestart.pods.in_order();
        for (unit, blow) in news {
            tracing::warn!(%unit, ?blow, "all MPS clients of a unit were hit");
            for pod in sick::on_card(&unit, &shares, &pods) {
                self.notes.send(standing::note(&pod, &unit, blow));
            }
        }
    }

    /// Each client with what the driver says that it holds.
    fn with_bytes(&self, unit: &GpuUuid, clients: &[u32]) -> Vec<(u32, u64)> {
        let held = self.driver.mps_clients(unit.as_str());
        let held = held.unwrap_or_else(|error| {
            tracing::warn!(%unit, %error, "what the MPS clients of a unit hold is not known");
            Vec::new()
        });
        let bytes = |pid: u32| {
            let found = held.iter().find(|(holder, _)| *holder == pid);
            found.map_or(0, |(_, bytes)| *bytes)
        };
        clients.iter().map(|pid| (*pid, bytes(*pid))).collect()
    }

    fn show(&self, last: &Shown, now: &Shown) {
        let label = |unit: &GpuUuid| MpsUnit {
            gpu: unit.to_string(),
        };
        for gone in last
            .units
            .keys()
            .filter(|unit| !now.units.contains_key(*unit))
        {
            self.metrics.mps_up.remove(&label(gone));
            self.metrics.mps_restarts.remove(&label(gone));
        }
        for (unit, standing) in &now.units {
            let up = self.metrics.mps_up.get_or_create(&label(unit)).clone();
            up.set(i64::from(standing.down.is_none()));
            let restarts = self
                .metrics
                .mps_restarts
                .get_or_create(&label(unit))
                .clone();
            restarts.set(i64::try_from(standing.restarts).unwrap_or(i64::MAX));
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
    standing::container_in(&cgroups).map(str::to_owned)
}
