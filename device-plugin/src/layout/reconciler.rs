//! Reconciles the node's GPUs with its profile: compares the desired with the current layout,
//! stores each change before it begins, publishes it, and switches each GPU independently.
//!
//! [`crate::layout::transition`] decides how one GPU changes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::inventory::{INVENTORY, RefusedPod};
use aliquot_core::{GpuUuid, Inventory};
use aliquot_k8s::event::EventSender;
use aliquot_node_state::accepted::AcceptedAllocation;
use aliquot_node_state::processes;
use aliquot_nvml::{DriverInventory, GpuFacts};
use aliquot_profiles::config::{Seconds, TransitionPolicy};
use aliquot_profiles::{Defaults, Mode};
use aliquot_serve::fail_point;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::allocation::accepted::Store;
use crate::allocation::collect;
use crate::allocation::node_allocations::NodeAllocations;
use crate::clock::steady;
use crate::gpus::allocatable::{self, NodeLayout};
use crate::gpus::device_failures;
use crate::gpus::inventory::PublishedNode;
use crate::health::gpus::HealthMonitor;
use crate::layout::desired_layout::{self, DesiredLayoutError};
use crate::layout::device_users::{self, DeviceUsers, UserSources};
use crate::layout::profile_status::{self, StepError};
use crate::layout::stored_layout::{StoredLayout, StoredLayoutError};
use crate::layout::transition::{self, ChangeStep, GpuState, PendingAction, TransitionInputs};
use crate::metrics::{Metrics, count, set_count};
use crate::modes::{self, SharingModes};
use crate::node_view::{NodeCondition, NodeView};
use crate::pods::pod::Phase;

/// The interval between two reconciliations without an event: the configuration is compared by its
/// text.
const POLL: Duration = Duration::from_secs(1);
/// The same while a GPU changes.
const POLL_WHILE_CHANGING: Duration = Duration::from_millis(200);
/// How long to wait, after the API server shows a GPU as cordoned, for a Binding that was already
/// on its way.
const BINDING_GRACE: Duration = Duration::from_secs(1);

/// The pause after a failed step; it doubles from the first value up to the second.
const RETRY_PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

pub struct LayoutReconciler {
    /// The path of the profile configuration; `None` if there is none.
    pub configuration: Option<PathBuf>,
    /// The values for what a profile leaves out.
    pub defaults: Defaults,
    /// Where [`StoredLayout`] is stored.
    pub layout_file: PathBuf,
    /// Pods, accepted allocations, the published state and the sharing modes.
    pub allocations: Arc<NodeAllocations>,
    /// The health monitor, which rereads the GPUs after a switch.
    pub health: Arc<HealthMonitor>,
    pub node: String,
    pub notes: EventSender,
    pub metrics: Metrics,
}

/// A step of a mode switch that is to be done on a GPU.
struct SwitchStep {
    gpu: GpuFacts,
    mode: Mode,
    /// The next mode, when this step leaves `mode`.
    to: Option<Mode>,
}

type StepResult = (GpuUuid, Result<(), StepError>);

impl LayoutReconciler {
    pub async fn run(
        self,
        mut state: ReconcilerState,
        mut seen: watch::Receiver<Option<NodeView>>,
        stop: CancellationToken,
    ) {
        let this = Arc::new(self);
        let (ended_tx, mut ended_rx) = mpsc::channel::<StepResult>(64);
        let mut pods = this.allocations.pods.subscribe();
        loop {
            let node = seen.borrow_and_update().clone();
            pods.borrow_and_update();
            let reconciler = Arc::clone(&this);
            let task = spawn_blocking(move || {
                let work = reconciler.reconcile(&mut state, node.as_ref());
                (state, work)
            });
            let Ok((new_state, work)) = task.await else {
                return;
            };
            state = new_state;
            for work in work {
                let (this, ended_tx) = (Arc::clone(&this), ended_tx.clone());
                tokio::spawn(async move {
                    let uuid = GpuUuid::from(work.gpu.uuid.as_str());
                    let done = spawn_blocking(move || this.run_step(&work)).await;
                    let ended = |error: JoinError| Err(StepError::Failed(error.to_string()));
                    let _stopped = ended_tx.send((uuid, done.unwrap_or_else(ended))).await;
                });
            }
            let changing = state.changing_count() > 0;
            tokio::select! {
                () = stop.cancelled() => return,
                _ = seen.changed() => {}
                Some(ended) = ended_rx.recv() => this.finish_step(&mut state, ended),
                _ = pods.changed(), if changing => {}
                () = tokio::time::sleep(if changing { POLL_WHILE_CHANGING } else { POLL }) => {}
            }
        }
    }

    /// One reconciliation. Stores and publishes the new state and returns the steps to do. Blocks.
    fn reconcile(&self, state: &mut ReconcilerState, node: Option<&NodeView>) -> Vec<SwitchStep> {
        let published = self.allocations.published.get();
        state.update_present(&published.readings.facts);
        self.read_configuration(state, node, &published.readings.facts);
        // Under the store's lock: a pod that is accepted meanwhile is either counted here or sees
        // that the GPU is changing.
        let affected = state.affected();
        let store = (!affected.is_empty()).then(|| self.allocations.store.lock());
        let users = store.as_ref().map_or_else(BTreeMap::new, |store| {
            self.device_users(&affected, &published, store)
        });
        track_cordons(state, &affected, node);
        let mut work = Vec::new();
        for facts in &published.readings.facts.gpus {
            let uuid = GpuUuid::from(facts.uuid.as_str());
            let mut gpu = state.layout.gpus.remove(&uuid).unwrap_or_default();
            let desired = state.layout.desired.get(&uuid);
            if !state.busy.contains(&uuid) {
                let was_late = gpu.is_late();
                gpu = advance(state, &uuid, gpu, desired, &users);
                if gpu.is_late() {
                    if !was_late {
                        count(&self.metrics.switches, "given-up");
                    }
                    // It is offered again, whatever the API server showed before.
                    state.cordoned_since.remove(&uuid);
                }
                let rests = state
                    .failures
                    .get(&uuid)
                    .is_some_and(|f| f.retry_at > Instant::now());
                if let Some((mode, to)) = state.next_step(&uuid, &gpu).filter(|_| !rests) {
                    let gpu = facts.clone();
                    work.push(SwitchStep { gpu, mode, to });
                }
            }
            state.layout.gpus.insert(uuid, gpu);
        }
        let resources = published.resources();
        state.layout.advertised.extend(resources.iter().cloned());
        match state.store_if_changed(&self.layout_file) {
            Ok(changed) => self.publish(state, &users, &resources, changed),
            Err(error) => {
                tracing::error!(%error, "cannot store the layout of the GPUs; no GPU is changed");
                return Vec::new();
            }
        }
        drop(store);
        let begun = work
            .iter()
            .map(|work| GpuUuid::from(work.gpu.uuid.as_str()));
        state.busy.extend(begun);
        work
    }

    /// Publishes layout, condition, events and evictions. Only what is stored is published.
    fn publish(
        &self,
        state: &mut ReconcilerState,
        users: &BTreeMap<GpuUuid, DeviceUsers>,
        resources: &BTreeSet<String>,
        changed: bool,
    ) {
        let failures = state
            .failures
            .iter()
            .map(|(uuid, failure)| (uuid.clone(), failure.error.clone()))
            .collect();
        let (layout, profile_error) = (&state.layout, state.profile_error.as_ref());
        let condition = profile_status::condition(
            layout,
            &state.present,
            &state.restoring,
            profile_error,
            users,
            &failures,
        );
        self.metrics
            .profile_error
            .set(i64::from(profile_error.is_some()));
        set_count(&self.metrics.changing_gpus, state.changing_count());
        let is_new = state.reported_condition.as_ref() != Some(&condition);
        if self.configuration.is_some() && (is_new || state.reported_hash != state.hash) {
            let profile = state.layout.profile.as_deref();
            self.metrics
                .set_profile(profile, state.hash, condition.holds);
            state.reported_hash = state.hash;
        }
        if self.configuration.is_some() && is_new {
            tracing::info!(
                reason = condition.reason,
                message = condition.message,
                "profile status changed"
            );
            if condition.reason != "Changing" {
                self.notes
                    .send(profile_status::note(&self.node, &condition));
            }
            state.reported_condition = Some(condition.clone());
        }
        // The allocated ids are read again before a replica may disappear.
        let entries = changed.then(|| self.allocations.entries().ok()).flatten();
        let allocated = entries.map(|entries| {
            let pods = &self.allocations.pods;
            device_failures::allocated_ids(&entries, &pods.in_order(), pods.synced())
        });
        let removed = layout.advertised.difference(resources).cloned().collect();
        let layout = NodeLayout {
            evict: evictions(layout, users),
            profile: self.configuration.as_ref().map(|_| condition),
            removed_resources: removed,
            ..layout.node_layout(&self.allocations.default_resource, &state.restoring)
        };
        self.allocations.published.set_layout(layout, allocated);
        fail_point::at("ChangePublished");
    }

    fn read_configuration(
        &self,
        state: &mut ReconcilerState,
        node: Option<&NodeView>,
        facts: &DriverInventory,
    ) {
        let Some(path) = &self.configuration else {
            return state.update_desired(None, &BTreeMap::new(), facts, &self.defaults);
        };
        let Some(node) = node else { return };
        match desired_layout::read_configuration(path) {
            Ok(text) => {
                state.hash = Some(desired_layout::hash(&text));
                state.update_desired(Some(&text), &node.labels, facts, &self.defaults);
            }
            Err(error) => state.profile_error = Some(error),
        }
    }

    /// The users of each of these GPUs. A GPU is missing while its users are unknown.
    fn device_users(
        &self,
        affected: &BTreeSet<GpuUuid>,
        node: &PublishedNode,
        store: &Store,
    ) -> BTreeMap<GpuUuid, DeviceUsers> {
        let pods = self.allocations.pods.in_order();
        if !self.allocations.pods.synced() {
            return BTreeMap::new();
        }
        let shares: Vec<Arc<AcceptedAllocation>> = store.shared().cloned().collect();
        let departed = collect::departed(&pods, store.pods());
        let alive = processes::alive(std::path::Path::new("/proc"), &departed);
        let (Ok(alive), Ok(entries)) = (alive, self.allocations.entries()) else {
            tracing::warn!("cannot determine which pods use the GPUs; no GPU changes its mode");
            return BTreeMap::new();
        };
        // Read directly: what housekeeping has published may be out of date.
        let foreign = collect::foreign(&entries, &pods, &node.ledger_ids());
        let unclear = store.damaged().keys().filter(|uid| {
            let pod = self.allocations.pods.get(uid);
            match pod.filter(|pod| pod.phase != Phase::Ended) {
                Some(pod) => pod.uses().is_none(),
                None => alive.contains(*uid),
            }
        });
        let known = UserSources {
            foreign: &foreign,
            inventory: &node.inventory,
            pods: &pods,
            shares: &shares,
            unclear: unclear.count(),
            alive: &alive,
        };
        let on = |uuid: &GpuUuid| (uuid.clone(), device_users::users_of(uuid, known));
        affected.iter().map(on).collect()
    }

    /// Does one step on one GPU. Blocks.
    fn run_step(&self, work: &SwitchStep) -> Result<(), StepError> {
        let (modes, mode) = (&self.allocations.modes, modes::of(&work.mode));
        let done = if let Some(to) = &work.to {
            fail_point::at("BeforeLeave");
            let done = mode.leave(modes, &work.gpu, to);
            fail_point::at("AfterLeave");
            done
        } else {
            fail_point::at("BeforeEnter");
            let done = mode.enter(modes, &work.gpu);
            fail_point::at("AfterEnter");
            done
        };
        if done.is_ok()
            && let Err(error) = self.health.reread()
        {
            tracing::warn!(%error, "cannot read the GPUs after a mode switch");
        }
        done.map_err(StepError::from)
    }

    fn finish_step(&self, state: &mut ReconcilerState, (uuid, result): StepResult) {
        state.busy.remove(&uuid);
        let Some(gpu) = state.layout.gpus.remove(&uuid) else {
            return;
        };
        match result {
            Ok(()) => {
                let next = state.after_step(&uuid, &gpu);
                if next.change.is_none() {
                    count(&self.metrics.switches, "done");
                }
                state.layout.gpus.insert(uuid, next);
            }
            Err(why) => {
                tracing::warn!(%uuid, why = why.text(), "cannot change the mode of a GPU");
                let waits = matches!(why, StepError::NeedsAction(_));
                count(
                    &self.metrics.switches,
                    if waits { "waits" } else { "failed" },
                );
                state.layout.gpus.insert(uuid.clone(), gpu);
                let pause = state.failures.get(&uuid).map(|failure| failure.pause);
                state.failures.insert(uuid, StepFailure::after(pause, why));
            }
        }
    }
}

/// The state of a GPU after one reconciliation.
fn advance(
    state: &ReconcilerState,
    uuid: &GpuUuid,
    mut gpu: GpuState,
    desired: Option<&Mode>,
    users: &BTreeMap<GpuUuid, DeviceUsers>,
) -> GpuState {
    loop {
        let to = gpu.change.as_ref().map(|change| &change.to).or(desired);
        let free = users
            .get(uuid)
            .zip(to)
            .is_some_and(|(users, to)| users.allow_change(gpu.mode.as_ref(), to));
        let cordoned_since = state.cordoned_since.get(uuid);
        let inputs = TransitionInputs {
            desired,
            users_known: users.contains_key(uuid),
            free,
            cordoned: cordoned_since.is_some_and(|since| since.elapsed() >= BINDING_GRACE),
            timeout: state.layout.transition.timeout.map(|Seconds(s)| s),
            now: steady(),
        };
        let next = transition::next_state(&gpu, &inputs);
        if next == gpu {
            return gpu;
        }
        gpu = next;
    }
}

/// Pods to evict from GPUs that drain.
fn evictions(layout: &StoredLayout, users: &BTreeMap<GpuUuid, DeviceUsers>) -> Vec<RefusedPod> {
    if layout.transition.policy != TransitionPolicy::Evict {
        return Vec::new();
    }
    let mut evict = Vec::new();
    for (uuid, users) in users {
        let gpu = layout.gpus.get(uuid);
        let Some(change) = gpu.and_then(|gpu| gpu.change.as_ref()) else {
            continue;
        };
        let mode = gpu.and_then(|gpu| gpu.mode.as_ref());
        let drains = change.step == ChangeStep::Draining && !change.late;
        if !drains || users.allow_change(mode, &change.to) {
            continue;
        }
        let to = change.to.name();
        for pod in users.pods.iter().filter(|pod| !pod.mirror) {
            let reason =
                format!("{uuid} changes to mode {to}, as the profile of its node requires");
            evict.push(pod.refused(reason));
        }
    }
    evict
}

/// What the reconciler knows between two reconciliations.
pub struct ReconcilerState {
    layout: StoredLayout,
    /// The GPUs that the driver reports. A stored GPU that is missing waits for its return.
    present: BTreeSet<GpuUuid>,
    stored: StoredLayout,
    /// The GPUs whose own mode is to be set up again, since the agent started or they returned.
    restoring: BTreeSet<GpuUuid>,
    profile_error: Option<DesiredLayoutError>,
    /// Since when the API server shows that a GPU accepts no new allocation.
    cordoned_since: BTreeMap<GpuUuid, Instant>,
    busy: BTreeSet<GpuUuid>,
    failures: BTreeMap<GpuUuid, StepFailure>,
    reported_condition: Option<NodeCondition>,
    /// The hash of the configuration that was read last, and of the one in the metrics.
    hash: Option<u64>,
    reported_hash: Option<u64>,
}

struct StepFailure {
    error: StepError,
    retry_at: Instant,
    pause: Duration,
}

impl StepFailure {
    /// `pause`: the one after the failure before this one.
    fn after(pause: Option<Duration>, error: StepError) -> Self {
        let pause = pause.map_or(RETRY_PAUSE.0, |pause| (pause * 2).min(RETRY_PAUSE.1));
        Self {
            error,
            retry_at: Instant::now() + pause,
            pause,
        }
    }
}

impl ReconcilerState {
    /// Restores the stored layout, and enters each GPU's mode again as far as that needs no
    /// waiting. Without a stored layout, which goes when the chart is removed while pods run, GPUs
    /// with allocations have the mode vgpu. Blocks.
    pub fn start(
        stored: Option<StoredLayout>,
        initial: &StartInputs<'_>,
    ) -> Result<Self, StoredLayoutError> {
        let mut state = Self {
            stored: StoredLayout::default(),
            layout: stored.unwrap_or_else(|| initial.initial_layout()),
            present: BTreeSet::new(),
            restoring: BTreeSet::new(),
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
            let mut gpu = state.layout.gpus.get(&uuid).cloned().unwrap_or_default();
            let is_new = gpu.mode.is_none() && gpu.step() != Some(ChangeStep::Entering);
            // A new GPU becomes vgpu at once.
            if is_new && let Some(desired @ Mode::Vgpu(_)) = state.layout.desired.get(&uuid) {
                gpu = gpu.changing(desired, ChangeStep::Entering, steady());
            }
            while let Some((mode, None)) = state.next_step(&uuid, &gpu) {
                let mode = modes::of(&mode);
                if mode.needs_mps_supervisor() {
                    break;
                }
                match mode.enter(initial.modes, facts) {
                    Ok(()) => gpu = state.after_step(&uuid, &gpu),
                    Err(error) => {
                        tracing::warn!(%uuid, %error, "cannot restore the mode of a GPU yet");
                        break;
                    }
                }
            }
            state.layout.gpus.insert(uuid, gpu);
        }
        state.store_if_changed(initial.path)?;
        Ok(state)
    }

    pub fn node_layout(&self, default_resource: &str) -> NodeLayout {
        self.layout.node_layout(default_resource, &self.restoring)
    }

    /// Records which GPUs are present. The mode of one that appears or returns is set up again, as
    /// at startup, unless a step of a change is pending on it.
    fn update_present(&mut self, facts: &DriverInventory) {
        let gpus = facts.gpus.iter();
        let present: BTreeSet<GpuUuid> = gpus.map(|gpu| gpu.uuid.as_str().into()).collect();
        self.restoring.retain(|uuid| present.contains(uuid));
        for uuid in present.difference(&self.present) {
            let gpu = self.layout.gpus.get(uuid);
            let rests = |gpu: &GpuState| transition::pending_action(gpu) == PendingAction::Nothing;
            if gpu.is_some_and(|gpu| gpu.mode.is_some() && rests(gpu)) {
                self.restoring.insert(uuid.clone());
            }
        }
        self.present = present;
    }

    /// What is to be done on a GPU: a mode to set up, or one to undo for the next.
    fn next_step(&self, uuid: &GpuUuid, gpu: &GpuState) -> Option<(Mode, Option<Mode>)> {
        match transition::pending_action(gpu) {
            PendingAction::Leave(mode, to) => Some((mode.clone(), Some(to.clone()))),
            PendingAction::Enter(mode) => Some((mode.clone(), None)),
            PendingAction::Nothing => {
                let own = gpu.mode.as_ref().filter(|_| self.restoring.contains(uuid));
                own.map(|own| (own.clone(), None))
            }
        }
    }

    /// The state of a GPU after that succeeded.
    fn after_step(&mut self, uuid: &GpuUuid, gpu: &GpuState) -> GpuState {
        self.restoring.remove(uuid);
        self.failures.remove(uuid);
        transition::after_action(gpu)
    }

    fn changing_count(&self) -> usize {
        let changes = |gpu: &GpuState| gpu.change.is_some() && !gpu.is_late();
        let gpus = self.layout.gpus.iter();
        let present = gpus.filter(|(uuid, _)| self.present.contains(*uuid));
        present
            .filter(|(uuid, gpu)| changes(gpu) || self.restoring.contains(*uuid))
            .count()
    }

    /// Records the desired layout, or the reason why it is unknown.
    fn update_desired(
        &mut self,
        text: Option<&str>,
        labels: &BTreeMap<String, String>,
        facts: &DriverInventory,
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
    fn affected(&self) -> BTreeSet<GpuUuid> {
        let desired = self.layout.desired.iter().filter(|(uuid, desired)| {
            let gpu = self.layout.gpus.get(*uuid);
            gpu.is_none_or(|gpu| gpu.mode.as_ref() != Some(desired))
        });
        let gpus = self.layout.gpus.iter();
        let changing = gpus
            .filter(|(_, gpu)| gpu.change.is_some())
            .map(|(uuid, _)| uuid);
        desired
            .map(|(uuid, _)| uuid)
            .chain(changing)
            .filter(|uuid| self.present.contains(*uuid))
            .cloned()
            .collect()
    }

    fn store_if_changed(&mut self, path: &Path) -> Result<bool, StoredLayoutError> {
        if self.layout == self.stored {
            return Ok(false);
        }
        fail_point::at("ChangeBeforeStore");
        self.layout.store(path)?;
        fail_point::at("ChangeAfterStore");
        self.stored = self.layout.clone();
        Ok(true)
    }
}

/// What the reconciler starts from.
pub struct StartInputs<'a> {
    /// A configuration exists; it is read once the node's labels are known.
    pub configured: bool,
    pub facts: &'a DriverInventory,
    /// The values for what a profile leaves out.
    pub defaults: &'a Defaults,
    pub modes: &'a SharingModes,
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
fn track_cordons(
    state: &mut ReconcilerState,
    affected: &BTreeSet<GpuUuid>,
    node: Option<&NodeView>,
) {
    let text = node.map(|node| node.annotation(INVENTORY));
    let shown = text.map(|text| text.map(Inventory::decode).transpose());
    let Some(Ok(shown)) = shown else {
        state.cordoned_since.clear();
        return;
    };
    let open = |uuid: &GpuUuid| {
        let mut devices = shown.iter().flat_map(|shown| &shown.gpus);
        devices.any(|device| allocatable::parent_gpu(device) == uuid && device.cordon.is_none())
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
#[path = "reconciler_tests.rs"]
mod tests;
