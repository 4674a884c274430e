//! Reconciles the node's GPUs with its profile: compares the desired with the current layout,
//! stores each change before it begins, publishes it, and switches each GPU independently.
//!
//! [`crate::transition`] decides how one GPU changes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::GpuUuid;
use aliquot_core::inventory::RefusedPod;
use aliquot_k8s::event::EventSender;
use aliquot_nvml::GpuFacts;
use aliquot_profiles::config::{Seconds, TransitionPolicy};
use aliquot_profiles::{Defaults, Mode};
use tokio::sync::{mpsc, watch};
use tokio::task::spawn_blocking;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::accepted::{AcceptedAllocation, Store};
use crate::clock::steady;
use crate::desired_layout::DesiredLayoutError;
use crate::device_users::{self, DeviceUsers, UserSources};
use crate::fail_point::{self, Point};
use crate::health::HealthMonitor;
use crate::inventory::LayoutUpdate;
use crate::metrics::{Metrics, count};
use crate::node::NodeView;
use crate::pod::Phase;
use crate::prestart::PreStart;
use crate::profile_status::StepError;
use crate::stored_layout::{StoredLayout, mode_name};
use crate::transition::{self, ChangeStep, GpuState, PendingAction, TransitionInputs};
use crate::{allocatable, collect, device_failures, hami, host, profile_source, profile_status};

mod state;

pub use state::{ReconcilerState, StartInputs};
use state::{StepFailure, track_cordons};

/// The interval between two reconciliations without an event: the configuration is compared by its
/// text.
const POLL: Duration = Duration::from_secs(1);
/// The same while a GPU changes.
const POLL_WHILE_CHANGING: Duration = Duration::from_millis(200);
/// How long to wait, after the API server shows a GPU as cordoned, for a Binding that was already
/// on its way.
const BINDING_GRACE: Duration = Duration::from_secs(1);

/// What the reconciler needs.
pub struct LayoutReconciler {
    /// The path of the profile configuration; `None` if there is none.
    pub configuration: Option<PathBuf>,
    /// The values for what a profile leaves out.
    pub defaults: Defaults,
    /// Where [`StoredLayout`] is stored.
    pub layout_file: PathBuf,
    /// Pods, accepted allocations, the published state and the sharing modes.
    pub prestart: Arc<PreStart>,
    /// The health monitor, which rereads the GPUs after a switch.
    pub health: Arc<HealthMonitor>,
    /// The node's name, for events.
    pub node: String,
    /// Events.
    pub notes: EventSender,
    /// Counts mode switches.
    pub metrics: Metrics,
}

/// A step of a mode switch that is to be done on a GPU.
struct SwitchStep {
    gpu: GpuFacts,
    mode: Mode,
    /// The next mode, when this step leaves `mode`.
    to: Option<Mode>,
}

/// The GPU and the result of a step.
type StepResult = (GpuUuid, Result<(), StepError>);

impl LayoutReconciler {
    /// Reconciles until `stop`.
    pub async fn run(
        self,
        mut state: ReconcilerState,
        mut seen: watch::Receiver<Option<NodeView>>,
        stop: CancellationToken,
    ) {
        let this = Arc::new(self);
        let (ended_tx, mut ended_rx) = mpsc::channel::<StepResult>(64);
        let mut pods = this.prestart.pods.subscribe();
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
                let uuid = GpuUuid::from(work.gpu.uuid.as_str());
                let done = spawn_blocking(move || this.run_step(&work));
                tokio::spawn(async move {
                    let done = done.await;
                    let ended =
                        |error: tokio::task::JoinError| Err(StepError::Failed(error.to_string()));
                    let done = done.unwrap_or_else(ended);
                    let _stopped = ended_tx.send((uuid, done)).await;
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
        let published = self.prestart.published.get();
        state.update_present(&published.facts);
        self.read_configuration(state, node, &published.facts);
        // Under the store's lock: a pod that is accepted meanwhile is either counted here or sees
        // that the GPU is changing.
        let affected = state.affected();
        let store = (!affected.is_empty()).then(|| self.prestart.store.lock());
        let users = store.as_ref().map_or_else(BTreeMap::new, |store| {
            self.device_users(&affected, &published, store)
        });
        track_cordons(state, &affected, node);
        let mut work = Vec::new();
        for facts in &published.facts.gpus {
            let uuid = GpuUuid::from(facts.uuid.as_str());
            let mut gpu = state.layout.gpus.remove(&uuid).unwrap_or_default();
            let desired = state.layout.desired.get(&uuid);
            if !state.busy.contains(&uuid) {
                let given_up = gpu.given_up.is_some();
                gpu = advance(state, &uuid, &gpu, desired, &users);
                if gpu.given_up.is_some() && !given_up {
                    count(&self.metrics.switches, "given-up");
                }
                let rests = state
                    .failures
                    .get(&uuid)
                    .is_some_and(|f| f.retry_at > Instant::now());
                let action = match transition::pending_action(&gpu) {
                    PendingAction::Nothing => None,
                    PendingAction::Leave(mode, to) => Some((mode.clone(), Some(to.clone()))),
                    PendingAction::Enter(mode) => Some((mode.clone(), None)),
                };
                if let Some((mode, to)) = action.filter(|_| !rests) {
                    let gpu = facts.clone();
                    work.push(SwitchStep { gpu, mode, to });
                }
            }
            state.layout.gpus.insert(uuid, gpu);
        }
        let resources = allocatable::resources(&published);
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
        let failures = state.failures.iter();
        let failures = failures.map(|(uuid, failure)| (uuid.clone(), failure.error.clone()));
        let failures = failures.collect();
        let (layout, profile_error) = (&state.layout, state.profile_error.as_ref());
        let condition =
            profile_status::condition(layout, &state.present, profile_error, users, &failures);
        self.metrics
            .profile_error
            .set(i64::from(profile_error.is_some()));
        let changing = i64::try_from(state.changing_count()).unwrap_or(i64::MAX);
        self.metrics.changing_gpus.set(changing);
        let is_new = state.reported_condition.as_ref() != Some(&condition);
        if self.configuration.is_some() && (is_new || state.reported_hash != state.hash) {
            let profile = state.layout.profile.as_deref();
            let applied = is_new && condition[1] == "Applied";
            self.metrics.set_profile(profile, state.hash, applied);
            state.reported_hash = state.hash;
        }
        if self.configuration.is_some() && is_new {
            tracing::info!(
                reason = condition[1],
                message = condition[2],
                "profile status changed"
            );
            if condition[1] != "Changing" {
                self.notes
                    .send(profile_status::note(&self.node, &condition));
            }
            state.reported_condition = Some(condition.clone());
        }
        // The allocated ids are read again before a replica may disappear.
        let entries = changed.then(|| self.prestart.entries().ok()).flatten();
        let allocated = entries.map(|entries| {
            let pods = &self.prestart.pods;
            device_failures::allocated_ids(&entries, &pods.in_order(), pods.synced())
        });
        let removed = layout.advertised.difference(resources).cloned().collect();
        self.prestart.published.set_layout(LayoutUpdate {
            layout: layout.node_layout(&self.prestart.default_resource),
            allocated_ids: allocated,
            evict: evictions(layout, users),
            profile: self.configuration.as_ref().map(|_| condition),
            removed_resources: removed,
        });
        fail_point::at(Point::ChangePublished);
    }

    fn read_configuration(
        &self,
        state: &mut ReconcilerState,
        node: Option<&NodeView>,
        facts: &aliquot_nvml::DriverInventory,
    ) {
        let Some(path) = &self.configuration else {
            return state.update_desired(None, &BTreeMap::new(), facts, &self.defaults);
        };
        let Some(node) = node else { return };
        match profile_source::read(path) {
            // A configuration that disappears does not ask for the default.
            Ok(None) if state.layout.profile.is_some() => {
                state.profile_error = Some(DesiredLayoutError {
                    reason: "ConfigurationMissing",
                    text: format!("no configuration found at {}", path.display()),
                });
            }
            Ok(text) => {
                state.hash = text.as_deref().map(profile_source::hash);
                state.update_desired(text.as_deref(), &node.all_labels, facts, &self.defaults);
            }
            Err(text) => {
                let reason = "ConfigurationBroken";
                state.profile_error = Some(DesiredLayoutError { reason, text });
            }
        }
    }

    /// The users of each of these GPUs. A GPU is missing while its users are unknown.
    fn device_users(
        &self,
        affected: &BTreeSet<GpuUuid>,
        node: &crate::inventory::PublishedNode,
        store: &Store,
    ) -> BTreeMap<GpuUuid, DeviceUsers> {
        let pods = self.prestart.pods.in_order();
        if !self.prestart.pods.synced() {
            return BTreeMap::new();
        }
        let shares: Vec<Arc<AcceptedAllocation>> = store.shared().cloned().collect();
        let departed = collect::departed(&pods, store.pods());
        let alive = host::alive(std::path::Path::new("/proc"), &departed);
        let (Ok(alive), Ok(entries)) = (alive, self.prestart.entries()) else {
            tracing::warn!("cannot determine which pods use the GPUs; no GPU changes its mode");
            return BTreeMap::new();
        };
        // Read directly: what housekeeping has published may be out of date.
        let foreign = collect::foreign(&entries, &pods, &node.ledger_ids());
        let unclear = store.damaged().keys().filter(|uid| {
            let pod = self.prestart.pods.get(uid);
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
            hami_pods: &hami::pod_allocations(&entries, &pods),
        };
        let on = |uuid: &GpuUuid| (uuid.clone(), device_users::users_of(uuid, known));
        affected.iter().map(on).collect()
    }

    /// Does one step on one GPU. Blocks.
    fn run_step(&self, work: &SwitchStep) -> Result<(), StepError> {
        let switch = self.prestart.modes.switch(&work.mode);
        let done = if let Some(to) = &work.to {
            fail_point::at(Point::BeforeLeave);
            let done = switch.leave(&work.gpu, &work.mode, to);
            fail_point::at(Point::AfterLeave);
            done
        } else {
            fail_point::at(Point::BeforeEnter);
            let done = switch.enter(&work.gpu, &work.mode);
            fail_point::at(Point::AfterEnter);
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
        let Some(gpu) = state.layout.gpus.get_mut(&uuid) else {
            return;
        };
        match result {
            Ok(()) => {
                *gpu = transition::after_action(gpu);
                state.failures.remove(&uuid);
                if gpu.change.is_none() {
                    count(&self.metrics.switches, "done");
                }
            }
            Err(why) => {
                tracing::warn!(%uuid, why = why.text(), "cannot change the mode of a GPU");
                let waits = matches!(why, StepError::NeedsAction(_));
                count(
                    &self.metrics.switches,
                    if waits { "waits" } else { "failed" },
                );
                let failure = state.failures.entry(uuid).or_insert_with(StepFailure::new);
                *gpu = failure.record(gpu, why);
            }
        }
    }
}

/// The state of a GPU after one reconciliation.
fn advance(
    state: &ReconcilerState,
    uuid: &GpuUuid,
    gpu: &GpuState,
    desired: Option<&Mode>,
    users: &BTreeMap<GpuUuid, DeviceUsers>,
) -> GpuState {
    let mut gpu = gpu.clone();
    loop {
        let to = gpu.change.as_ref().map(|change| &change.to).or(desired);
        let free = users
            .get(uuid)
            .zip(to)
            .is_some_and(|(users, to)| device_users::may_stay(users, gpu.mode.as_ref(), to));
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
            return next;
        }
        gpu = next;
    }
}

/// Pods to evict from GPUs that drain: those that do not fit the new mode.
fn evictions(layout: &StoredLayout, users: &BTreeMap<GpuUuid, DeviceUsers>) -> Vec<RefusedPod> {
    if layout.transition.policy != TransitionPolicy::Evict {
        return Vec::new();
    }
    let mut evict = Vec::new();
    for (uuid, users) in users {
        let gpu = layout.gpus.get(uuid);
        let change = gpu.and_then(|gpu| gpu.change.as_ref());
        let Some(change) = change.filter(|change| change.step == ChangeStep::Draining) else {
            continue;
        };
        let mode = gpu.and_then(|gpu| gpu.mode.as_ref());
        if device_users::may_stay(users, mode, &change.to) {
            continue;
        }
        let to = mode_name(&change.to);
        for pod in users.pods.iter().filter(|pod| !pod.mirror) {
            evict.push(RefusedPod {
                pod: pod.uid.clone(),
                namespace: pod.namespace.clone(),
                name: pod.name.clone(),
                reason: format!("{uuid} changes to mode {to}, as the profile of its node requires"),
            });
        }
    }
    evict
}

#[cfg(test)]
mod tests {
    use aliquot_profiles::mode::Vgpu;

    use super::*;
    use crate::testing::pod;
    use crate::transition::ModeChange;

    fn vgpu(split: u32) -> Mode {
        Mode::Vgpu(Vgpu {
            split: Some(split),
            ..Vgpu::default()
        })
    }

    #[test]
    fn evicts_only_pods_that_do_not_fit_new_mode() {
        let check = |to: Mode, expected: usize| {
            let gpu = GpuState {
                mode: Some(vgpu(10)),
                change: Some(ModeChange {
                    to,
                    step: ChangeStep::Draining,
                    since: 0,
                }),
                ..GpuState::default()
            };
            let mut layout = StoredLayout::default();
            layout.gpus.insert("GPU-a".into(), gpu);
            layout.transition.policy = TransitionPolicy::Evict;
            let users = DeviceUsers {
                pods: vec![std::sync::Arc::new(pod("u1"))],
                ..DeviceUsers::default()
            };
            let users = BTreeMap::from([("GPU-a".into(), users)]);
            assert_eq!(evictions(&layout, &users).len(), expected);
        };
        check(vgpu(12), 0);
        check(
            Mode::Exclusive(aliquot_profiles::mode::Exclusive::default()),
            1,
        );
    }
}
