//! The state of the layout reconciler, and how it starts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use aliquot_core::{GpuUuid, Inventory};
use aliquot_profiles::mode::InstanceSharing;
use aliquot_profiles::{Defaults, Mode};
use tokio::time::Instant;

use crate::accepted::AcceptedAllocation;
use crate::clock::steady;
use crate::desired_layout::{self, DesiredLayoutError};
use crate::fail_point::{self, Point};
use crate::modes::SharingModes;
use crate::node::NodeView;
use crate::profile_status::StepError;
use crate::stored_layout::{StoredLayout, StoredLayoutError};
use crate::transition::{self, GpuState, PendingAction, TransitionInputs};
use crate::{allocatable, device_users};

/// The number of failures after which a mode is given up.
const MAX_TRIES: u32 = 3;
/// The pause after a failed step; it doubles from the first value up to the second.
const RETRY_PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// What the reconciler knows between two reconciliations.
pub struct ReconcilerState {
    pub(super) layout: StoredLayout,
    /// The GPUs that the driver reports. A stored GPU that is missing waits for its return.
    pub(super) present: BTreeSet<GpuUuid>,
    pub(super) stored: StoredLayout,
    pub(super) profile_error: Option<DesiredLayoutError>,
    /// Since when the API server shows that a GPU accepts no new allocation.
    pub(super) cordoned_since: BTreeMap<GpuUuid, Instant>,
    /// GPUs on which a step is running.
    pub(super) busy: BTreeSet<GpuUuid>,
    pub(super) failures: BTreeMap<GpuUuid, StepFailure>,
    pub(super) reported_condition: Option<[String; 3]>,
    /// The hash of the configuration that was read last, and of the one in the metrics.
    pub(super) hash: Option<u64>,
    pub(super) reported_hash: Option<u64>,
}

pub(super) struct StepFailure {
    pub(super) error: StepError,
    pub(super) tries: u32,
    pub(super) retry_at: Instant,
    pub(super) pause: Duration,
}

impl StepFailure {
    pub(super) fn new() -> Self {
        Self {
            error: StepError::Failed(String::new()),
            tries: 0,
            retry_at: Instant::now(),
            pause: RETRY_PAUSE.0,
        }
    }

    /// Records a failed step and returns the GPU's state after it. A step that needs the
    /// administrator is never given up: that would undo what it waits for.
    pub(super) fn record(&mut self, gpu: &GpuState, why: StepError) -> GpuState {
        self.retry_at = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(RETRY_PAUSE.1);
        self.error = why;
        let StepError::Failed(text) = &self.error else {
            return gpu.clone();
        };
        self.tries += 1;
        if self.tries < MAX_TRIES {
            return gpu.clone();
        }
        self.tries = 0;
        transition::abandon(gpu, text)
    }
}

impl ReconcilerState {
    /// Restores the stored layout, and enters each GPU's mode again as far as that needs no
    /// waiting. A node without a stored layout starts as releases before profiles left it: vgpu on
    /// GPUs with allocations. Blocks.
    pub fn start(
        stored: Option<StoredLayout>,
        initial: &StartInputs<'_>,
    ) -> Result<Self, StoredLayoutError> {
        let now = steady();
        let mut state = Self {
            stored: StoredLayout::default(),
            layout: stored.unwrap_or_else(|| initial.initial_layout()),
            present: BTreeSet::new(),
            profile_error: None,
            cordoned_since: BTreeMap::new(),
            busy: BTreeSet::new(),
            failures: BTreeMap::new(),
            reported_condition: None,
            hash: None,
            reported_hash: None,
        };
        state.update_present(initial.facts);
        if !initial.configured {
            let labels = BTreeMap::new();
            state.update_desired(None, &labels, initial.facts, initial.defaults);
        }
        for facts in &initial.facts.gpus {
            let uuid = GpuUuid::from(facts.uuid.as_str());
            let desired = state.layout.desired.get(&uuid).cloned();
            let mut gpu = state.layout.gpus.remove(&uuid).unwrap_or_default();
            loop {
                let free = gpu.mode.is_none() && matches!(desired, Some(Mode::Vgpu(_)));
                let inputs = TransitionInputs {
                    desired: desired.as_ref().filter(|_| free),
                    users_known: free,
                    free,
                    cordoned: free,
                    timeout: None,
                    now,
                };
                let next = transition::next_state(&gpu, &inputs);
                let changed = next != gpu;
                gpu = next;
                if let PendingAction::Enter(mode) = transition::pending_action(&gpu) {
                    if needs_mps_supervisor(mode) {
                        break;
                    }
                    match initial.modes.switch(mode).enter(facts, mode) {
                        Ok(()) => gpu = transition::after_action(&gpu),
                        Err(error) => {
                            tracing::warn!(%uuid, %error, "cannot restore the mode of a GPU yet");
                            break;
                        }
                    }
                } else if !changed {
                    break;
                }
            }
            state.layout.gpus.insert(uuid, gpu);
        }
        state.store_if_changed(initial.path)?;
        Ok(state)
    }

    /// How the GPUs are shared now.
    pub fn node_layout(&self, default_resource: &str) -> allocatable::NodeLayout {
        self.layout.node_layout(default_resource)
    }

    /// Takes over which GPUs are present. One that appears or returns has its mode entered again,
    /// as at startup.
    pub(super) fn update_present(&mut self, facts: &aliquot_nvml::DriverInventory) {
        let gpus = facts.gpus.iter();
        let present: BTreeSet<GpuUuid> = gpus.map(|gpu| gpu.uuid.as_str().into()).collect();
        for uuid in present.difference(&self.present) {
            if let Some(gpu) = self.layout.gpus.get_mut(uuid) {
                *gpu = transition::at_startup(gpu, steady());
            }
        }
        self.present = present;
    }

    /// How many GPUs are changing.
    pub(super) fn changing_count(&self) -> usize {
        let gpus = self.layout.gpus.iter();
        let present = gpus.filter(|(uuid, _)| self.present.contains(*uuid));
        present.filter(|(_, gpu)| gpu.change.is_some()).count()
    }

    /// Takes over the desired layout, or the reason why it is unknown.
    pub(super) fn update_desired(
        &mut self,
        text: Option<&str>,
        labels: &BTreeMap<String, String>,
        facts: &aliquot_nvml::DriverInventory,
        defaults: &Defaults,
    ) {
        match desired_layout::determine(text, labels, facts, defaults) {
            Ok(desired) => {
                self.layout.profile = Some(desired.profile);
                self.layout.transition = desired.transition;
                self.layout.desired = desired.gpus;
                self.layout.reserve = desired.reserve;
                self.profile_error = None;
            }
            Err(error) => self.profile_error = Some(error),
        }
    }

    /// The GPUs that are changing, or should.
    pub(super) fn affected(&self) -> BTreeSet<GpuUuid> {
        let desired = self.layout.desired.iter().filter(|(uuid, desired)| {
            let gpu = self.layout.gpus.get(*uuid);
            gpu.is_none_or(|gpu| gpu.mode.as_ref() != Some(desired))
        });
        let gpus = self.layout.gpus.iter();
        let changing = gpus.filter(|(_, gpu)| gpu.change.is_some());
        let changing = changing.map(|(uuid, _)| uuid);
        desired
            .map(|(uuid, _)| uuid)
            .chain(changing)
            .filter(|uuid| self.present.contains(*uuid))
            .cloned()
            .collect()
    }

    pub(super) fn store_if_changed(&mut self, path: &Path) -> Result<bool, StoredLayoutError> {
        if self.layout == self.stored {
            return Ok(false);
        }
        fail_point::at(Point::ChangeBeforeStore);
        self.layout.store(path)?;
        fail_point::at(Point::ChangeAfterStore);
        self.stored = self.layout.clone();
        Ok(true)
    }
}

/// Whether entering a mode waits for the MPS supervisor. Such a mode is entered after the kubelet
/// is being served.
fn needs_mps_supervisor(mode: &Mode) -> bool {
    match mode {
        Mode::Mps(_) => true,
        Mode::Mig(mig) => {
            let mut slices = mig.layout.iter();
            slices.any(|slice| matches!(slice.on, Some(InstanceSharing::Mps(_))))
        }
        Mode::Vgpu(_) | Mode::Exclusive(_) | Mode::Timeslice(_) | Mode::Unmanaged => false,
    }
}

/// What the reconciler starts from.
pub struct StartInputs<'a> {
    /// A configuration exists; it is read once the node's labels are known.
    pub configured: bool,
    /// The GPUs as the driver reports them.
    pub facts: &'a aliquot_nvml::DriverInventory,
    /// The values for what a profile leaves out.
    pub defaults: &'a Defaults,
    /// The sharing modes.
    pub modes: &'a SharingModes,
    /// Allocations that were accepted earlier.
    pub accepted: &'a [AcceptedAllocation],
    /// Where [`StoredLayout`] is stored.
    pub path: &'a Path,
}

impl StartInputs<'_> {
    fn initial_layout(&self) -> StoredLayout {
        let vgpu = Mode::Vgpu(aliquot_profiles::mode::Vgpu::default()).with_defaults(self.defaults);
        let allocated = self
            .accepted
            .iter()
            .flat_map(|share| share.uses().keys().cloned());
        let gpu = GpuState {
            mode: Some(vgpu),
            ..GpuState::default()
        };
        StoredLayout {
            gpus: allocated.map(|uuid| (uuid, gpu.clone())).collect(),
            ..StoredLayout::default()
        }
    }
}

/// Notes since when the API server shows each GPU as cordoned.
pub(super) fn track_cordons(
    state: &mut ReconcilerState,
    affected: &BTreeSet<GpuUuid>,
    node: Option<&NodeView>,
) {
    let text = node.map(|node| node.inventory.as_deref());
    let shown = text.map(|text| text.map(Inventory::decode).transpose());
    let Some(Ok(shown)) = shown else {
        state.cordoned_since.clear();
        return;
    };
    let open = |uuid: &GpuUuid| {
        let mut devices = shown.iter().flat_map(|shown| &shown.gpus);
        devices.any(|device| device_users::belongs_to(device, uuid) && device.cordon.is_none())
    };
    state
        .cordoned_since
        .retain(|uuid, _| affected.contains(uuid) && !open(uuid));
    for uuid in affected.iter().filter(|uuid| !open(uuid)) {
        state
            .cordoned_since
            .entry(uuid.clone())
            .or_insert_with(Instant::now);
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
