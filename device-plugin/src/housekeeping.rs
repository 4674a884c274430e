//! Housekeeping: removes files that nobody needs, finds lost checkpoints, lingering or foreign use
//! of devices and resources that another device plugin serves, and audits the kubelet's two records.
//! It never collects at start or exit, before the pods are synced, or while the checkpoint cannot be
//! read.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::{GpuUuid, PodUid};
use aliquot_k8s::event::{EventNote, EventSender};
use thiserror::Error;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::accepted::AcceptedAllocation;
use crate::checkpoint::CheckpointError;
use crate::files::{self, FileError};
use crate::metrics::{Metrics, count};
use crate::modes::mig::check;
use crate::pod::Phase;
use crate::prestart::PreStart;
use crate::proto::v1::ListPodResourcesRequest;
use crate::register::pod_resources;
use crate::resource_owner::{self, ResourceOwners};
use crate::{
    allocatable, audit, cdi, checkpoint, collect, counters_file, device_failures, host, injection,
    monitor_evictions, uncorrected,
};

/// Least time between two runs, however many pods change.
const GAP: Duration = Duration::from_secs(1);
/// How long an entry must be missing before it counts as lost: the kubelet removes an ended pod
/// before the API server reports its end.
const LOST_AFTER: Duration = Duration::from_secs(5);
/// Longest wait for the kubelet's `PodResources`.
const DEADLINE: Duration = Duration::from_secs(10);

/// Why a run ended early.
#[derive(Debug, Error)]
pub enum HousekeepingError {
    /// The checkpoint cannot be used.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A file cannot be listed or removed.
    #[error(transparent)]
    File(#[from] FileError),
    /// `/proc` cannot be listed.
    #[error("cannot list processes: {0}")]
    Processes(std::io::Error),
}

/// Runs until `stop`, every `interval` and after changes of the pods.
pub async fn run(
    prestart: Arc<PreStart>,
    proc: PathBuf,
    interval: Duration,
    lost: watch::Sender<Option<BTreeSet<PodUid>>>,
    notes: EventSender,
    metrics: Metrics,
    stop: CancellationToken,
) {
    let mut notified = BTreeSet::new();
    let mut changes = prestart.pods.subscribe();
    let mut missing: BTreeMap<PodUid, Instant> = BTreeMap::new();
    let mut owners = ResourceOwners::default();
    loop {
        if prestart.pods.synced() {
            changes.borrow_and_update();
            notify_damaged(&prestart, &mut notified, &notes);
            let (this, proc) = (Arc::clone(&prestart), proc.clone());
            let counted = metrics.clone();
            match spawn_blocking(move || run_once(&this, &proc, &counted)).await {
                Ok(Ok(found)) => {
                    let now = Instant::now();
                    let now_lost = missing_long_enough(&mut missing, found, now);
                    metrics
                        .checkpoint_lost
                        .set(i64::try_from(now_lost.len()).unwrap_or(i64::MAX));
                    let undecided = now_lost.len() < missing.len();
                    lost.send_if_modified(|known| update_lost(known, now_lost, undecided));
                }
                Ok(Err(error)) => {
                    tracing::warn!(%error, "housekeeping ended early; it runs again at the next interval");
                }
                Err(_) => return,
            }
            report_taken(&prestart, &mut owners, &notes, &metrics).await;
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(interval) => {}
            () = async { let _ = changes.changed().await; tokio::time::sleep(GAP).await; } => {}
        }
    }
}

/// Pods missing for long enough; `missing` records since when each is.
fn missing_long_enough(
    missing: &mut BTreeMap<PodUid, Instant>,
    found: BTreeSet<PodUid>,
    now: Instant,
) -> BTreeSet<PodUid> {
    missing.retain(|uid, _| found.contains(uid));
    for uid in found {
        missing.entry(uid).or_insert(now);
    }
    let settled = missing
        .iter()
        .filter(|(_, since)| now - **since >= LOST_AFTER);
    settled.map(|(uid, _)| uid.clone()).collect()
}

/// Records the lost pods; whether that is a change. At first nothing is known until no missing
/// entry is `undecided`.
fn update_lost(
    known: &mut Option<BTreeSet<PodUid>>,
    lost: BTreeSet<PodUid>,
    undecided: bool,
) -> bool {
    if known.is_none() && undecided {
        return false;
    }
    let differs = known.as_ref() != Some(&lost);
    *known = Some(lost);
    differs
}

/// Runs once. Returns the pods whose checkpoint entry is missing now.
pub fn run_once(
    prestart: &PreStart,
    proc: &std::path::Path,
    metrics: &Metrics,
) -> Result<BTreeSet<PodUid>, HousekeepingError> {
    // Under the lock, so that an allocation stored meanwhile cannot look unowned.
    let mut store = prestart.store.lock();
    let entries = prestart.entries()?;
    let mut pods = prestart.pods.in_order();
    // A pod that has ended needs its files no more than one that is gone; its remaining processes
    // are lingering.
    pods.retain(|pod| pod.phase != Phase::Ended);
    let departed = collect::departed(&pods, store.pods());
    let alive = host::alive(proc, &departed).map_err(HousekeepingError::Processes)?;

    let on_disk = on_disk(prestart)?;
    let damaged: BTreeSet<PodUid> = store.damaged().keys().cloned().collect();
    let shares = || store.all();
    let garbage = collect::garbage(&entries, &pods, shares(), &damaged, &alive, &on_disk);
    // A failed removal is retried at the next run and does not stop this one.
    for name in &garbage.names {
        match remove(prestart, name) {
            Ok(()) => {
                metrics.collected.inc();
                tracing::info!(name, "removed the files of a container that is gone");
            }
            Err(error) => {
                tracing::warn!(name, %error, "cannot remove the files of a container that is gone; retrying at the next run");
            }
        }
    }
    for uid in &garbage.pods {
        if let Err(error) = store.remove(uid) {
            tracing::warn!(%uid, %error, "cannot remove the accepted allocation of a pod that is gone; retrying at the next run");
        }
    }

    let damaged: BTreeSet<PodUid> = store.damaged().keys().cloned().collect();
    // The share of a damaged allocation is unknown.
    if damaged.is_empty() {
        prestart.modes.lower_mps_limits(store.all());
    }
    let shares: Vec<Arc<AcceptedAllocation>> = store.shared().cloned().collect();
    let shares = || shares.iter().map(|share| &**share);
    drop(store);
    let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    metrics.accepted.set(number(shares().count()));
    metrics.damaged_shares.set(number(damaged.len()));
    let node = prestart.published.get();
    let devices = node.inventory.gpus.iter().map(|gpu| gpu.uuid.clone());
    let devices: Vec<GpuUuid> = devices.collect();
    let mut foreign = collect::foreign(&entries, &pods, &node.ledger_ids());
    foreign.extend(collect::foreign_of_damaged(&damaged, &alive, &devices));
    let lingering = collect::lingering(&alive, shares());
    prestart.published.set_holders(foreign, lingering);
    let present = |uid: &PodUid| pods.iter().any(|pod| pod.uid == *uid);
    prestart.published.retain_refused(present);
    let evictions = monitor_evictions::read(&prestart.paths.evictions, present);
    prestart.published.set_monitor_evictions(evictions);
    let list = uncorrected::read(&prestart.paths.uncorrected);
    prestart.published.set_uncorrected(list);
    let list = uncorrected::read(&prestart.paths.unmeasured);
    prestart.published.set_unmeasured(list.as_ref());
    prestart.refresh()?;
    if let Some(installed) = &prestart.limiter {
        let (root, specs) = (&prestart.paths.limiter, &prestart.paths.cdi);
        match injection::collect(root, installed, specs) {
            Ok(0) => {}
            Ok(removed) => tracing::info!(
                removed,
                "removed versions of the limiter that no container uses"
            ),
            Err(error) => tracing::warn!(%error, "cannot remove old versions of the limiter"),
        }
    }
    Ok(collect::lost(&entries, &pods, shares()))
}

/// Removes the files of a name.
pub(crate) fn remove(prestart: &PreStart, name: &str) -> Result<(), FileError> {
    files::remove(&prestart.paths.cdi.join(cdi::file_name(name)))?;
    let directory = prestart.paths.container_directories.join(name);
    counters_file::unmount(&directory)?;
    files::remove(&directory)
}

/// Sends an event, once, to each pod whose accepted allocation cannot be read.
fn notify_damaged(prestart: &PreStart, notified: &mut BTreeSet<PodUid>, notes: &EventSender) {
    let damaged = prestart.store.lock().damaged().clone();
    notified.retain(|uid| damaged.contains_key(uid));
    for (uid, why) in damaged {
        let Some(pod) = prestart.pods.get(&uid).filter(|_| !notified.contains(&uid)) else {
            continue;
        };
        let text = format!(
            "cannot read the accepted allocation of this pod on its node ({why}); the pod keeps running, and its next container start is validated against its annotation"
        );
        notes.send(device_failures::pod_event(&pod, true, "ShareDamaged", text));
        notified.insert(uid);
    }
}

/// Reports the resources that another device plugin serves.
async fn report_taken(
    prestart: &Arc<PreStart>,
    owners: &mut ResourceOwners,
    notes: &EventSender,
    metrics: &Metrics,
) {
    let node = prestart.published.get();
    let resources = allocatable::resources(&node);
    let advertised = prestart.call_state.advertised.all_of(&resources);
    // Another plugin may follow an agent that is leaving.
    let Some(advertised) = advertised.filter(|_| !node.leaving_node) else {
        return;
    };
    let this = Arc::clone(prestart);
    let read = move || {
        let registered = checkpoint::read_registered(&this.paths.checkpoint)?;
        Ok::<_, CheckpointError>((registered, this.entries()?))
    };
    let (registered, entries) = match spawn_blocking(read).await {
        Ok(Ok(read)) => read,
        Ok(Err(error)) => {
            tracing::warn!(%error, "cannot check which device plugin serves the resources of this agent");
            return;
        }
        Err(_) => return,
    };
    let taken = owners.check(&advertised, &registered, &entries, Instant::now());
    let ids = taken.iter().map(|one| one.ids.len()).sum::<usize>();
    let ids = i64::try_from(ids).unwrap_or(i64::MAX);
    metrics.foreign_device_ids.set(ids);
    if node.taken_resources.as_deref().unwrap_or_default() != taken.as_slice() {
        let event = resource_owner::note(prestart.node.as_str(), &taken);
        tracing::warn!(reason = event.reason, text = event.text);
        notes.send(event);
    }
    prestart.published.set_taken_resources(taken);
}

/// Every name that has a CDI spec or a container directory.
pub(crate) fn on_disk(prestart: &PreStart) -> Result<BTreeSet<String>, FileError> {
    let specs = files::names(&prestart.paths.cdi)?;
    let specs = specs.iter().filter_map(|file| cdi::name_of(file));
    let mut names: BTreeSet<String> = specs.map(str::to_owned).collect();
    names.extend(files::names(&prestart.paths.container_directories)?);
    Ok(names)
}

/// Audits until `stop`, every `interval`.
pub async fn run_audits(
    prestart: Arc<PreStart>,
    interval: Duration,
    notes: EventSender,
    metrics: Metrics,
    stop: CancellationToken,
) {
    let mut notified = BTreeSet::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(interval) => {}
        }
        if !prestart.pods.synced() {
            continue;
        }
        let this = Arc::clone(&prestart);
        match spawn_blocking(move || wrong_instances(&this)).await {
            Ok(Ok(wrong)) => {
                for note in wrong {
                    tracing::warn!(pod = note.pod.name, text = note.text);
                    if notified.insert((note.pod.uid.clone(), note.text.clone())) {
                        metrics.audit_differences.inc();
                        notes.send(note);
                    }
                }
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, "cannot compare MIG instances in containers with allocations");
            }
            Err(_) => return,
        }
        match audit_once(&prestart).await {
            Ok(None) => count(&metrics.audits, "skipped"),
            Ok(Some(differences)) => {
                count(&metrics.audits, "done");
                for difference in differences {
                    metrics.audit_differences.inc();
                    tracing::warn!(%difference, "PodResources and the kubelet's device checkpoint differ");
                }
            }
            Err(error) => {
                count(&metrics.audits, "failed");
                tracing::warn!(
                    error,
                    "cannot compare PodResources with the device checkpoint"
                );
            }
        }
    }
}

/// Containers that see another MIG instance than the one in their allocation.
fn wrong_instances(prestart: &PreStart) -> std::io::Result<Vec<EventNote>> {
    let shares: Vec<AcceptedAllocation> = prestart.store.lock().all().cloned().collect();
    let pods = check::pods_with_instances(&shares);
    let found =
        check::VARIABLES.map(|name| host::variable_at_start(Path::new("/proc"), &pods, name));
    let found = found
        .into_iter()
        .collect::<std::io::Result<Vec<_>>>()?
        .concat();
    let wrong = check::wrong_instances(&prestart.published.get(), &shares, &found);
    let note = |one: check::WrongInstance| {
        let share = shares.iter().find(|share| share.pod == one.pod)?;
        Some(check::note(share, &one))
    };
    Ok(wrong.into_iter().filter_map(note).collect())
}

/// Audits once; `None` when the checkpoint changed meanwhile.
async fn audit_once(prestart: &Arc<PreStart>) -> Result<Option<Vec<audit::Difference>>, String> {
    let entries = async || {
        let this = Arc::clone(prestart);
        let read = spawn_blocking(move || this.entries()).await;
        read.map_err(|error| error.to_string())?
            .map_err(|error| error.to_string())
    };
    let before = entries().await?;
    let answer = timeout(DEADLINE, async {
        let mut kubelet = pod_resources(&prestart.paths.pod_resources)
            .await
            .map_err(|error| format!("PodResources: {error}"))?;
        kubelet
            .list(ListPodResourcesRequest {})
            .await
            .map_err(|status| format!("PodResources: {status}"))
    })
    .await
    .map_err(|_| "the kubelet's PodResources API did not answer within 10 s".to_owned())??;
    if entries().await? != before {
        return Ok(None);
    }
    let ours = before.iter().map(|entry| entry.resource.clone());
    let mut resources: BTreeSet<String> = ours.collect();
    resources.extend(allocatable::resources(&prestart.published.get()));
    let listed = audit::listed(answer.get_ref(), &resources);
    let pods = prestart.pods.in_order();
    Ok(Some(audit::differences(&listed, &before, &pods)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_entry_as_lost_after_grace_period() {
        let start = Instant::now();
        let mut missing = BTreeMap::new();
        let mut check = |seconds, found: &[&str], expected: &[&str]| {
            let set = |uids: &[&str]| uids.iter().map(|&uid| PodUid::from(uid)).collect();
            let now = start + Duration::from_secs(seconds);
            let expected: BTreeSet<PodUid> = set(expected);
            assert_eq!(
                missing_long_enough(&mut missing, set(found), now),
                expected,
                "{seconds} s"
            );
        };
        check(0, &["u1"], &[]);
        check(4, &["u1", "u2"], &[]);
        check(5, &["u1", "u2"], &["u1"]);
        check(6, &["u2"], &[]);
        check(9, &["u1", "u2"], &["u2"]);
    }

    #[test]
    fn restarted_agent_does_not_clear_lost_checkpoint() {
        let lost = || BTreeSet::from([PodUid::from("u1")]);
        let mut known = None;
        assert!(!update_lost(&mut known, BTreeSet::new(), true));
        assert_eq!(known, None);
        assert!(update_lost(&mut known, lost(), false));
        assert!(!update_lost(&mut known, lost(), true));
        assert!(update_lost(&mut known, BTreeSet::new(), false));
        assert_eq!(known, Some(BTreeSet::new()));
    }
}
