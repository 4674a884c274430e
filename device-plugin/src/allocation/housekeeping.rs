//! Housekeeping: removes files that nobody needs, and finds lost checkpoints and orphaned or
//! foreign use of devices. It never collects at start or exit, before the pods are synced, or while the
//! checkpoint cannot be read.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::{GpuUuid, PodUid};
use aliquot_k8s::event::EventSender;
use thiserror::Error;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::allocation::accepted::Store;
use crate::allocation::collect::{self, Garbage};
use crate::allocation::counters_file;
use crate::allocation::node_allocations::NodeAllocations;
use crate::allocation::prepare::Preparer;
use crate::container_edits::ContainerEdits;
use crate::files::{self, FileError};
use crate::gpus::device_failures;
use crate::gpus::inventory::MonitorReports;
use crate::metrics::{Metrics, set_count};
use crate::paths::Paths;
use crate::pods::pod::Phase;
use aliquot_node_state::accepted::{self, AcceptedAllocation};
use aliquot_node_state::checkpoint::CheckpointError;
use aliquot_node_state::monitor_reports;

/// Least time between two runs, however many pods change.
const GAP: Duration = Duration::from_secs(1);
/// How long an entry must be missing before it counts as lost: the kubelet removes an ended pod
/// before the API server reports its end.
const LOST_AFTER: Duration = Duration::from_secs(5);
/// How long a pod that the watch does not list counts as one that it will still list.
const LISTED_AFTER: Duration = Duration::from_secs(30);

#[derive(Debug, Error)]
pub enum HousekeepingError {
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("cannot list processes: {0}")]
    Processes(std::io::Error),
}

/// Runs until `stop`, every `interval` and after changes of the pods.
pub async fn run(
    preparer: Arc<Preparer>,
    proc: PathBuf,
    interval: Duration,
    lost: watch::Sender<Option<BTreeSet<PodUid>>>,
    notes: EventSender,
    metrics: Metrics,
    stop: CancellationToken,
) {
    let known = Arc::clone(preparer.allocations());
    let mut notified = BTreeSet::new();
    let mut changes = known.pods.subscribe();
    let mut missing: BTreeMap<PodUid, Instant> = BTreeMap::new();
    loop {
        if known.pods.synced() {
            changes.borrow_and_update();
            notify_damaged(&known, &mut notified, &notes);
            let (this, proc) = (Arc::clone(&preparer), proc.clone());
            let counted = metrics.clone();
            match spawn_blocking(move || run_once(&this, &proc, &counted)).await {
                Ok(Ok(found)) => {
                    let now = Instant::now();
                    let now_lost = missing_long_enough(&mut missing, found, now);
                    set_count(&metrics.checkpoint_lost, now_lost.len());
                    let undecided = now_lost.len() < missing.len();
                    lost.send_if_modified(|known| update_lost(known, now_lost, undecided));
                }
                Ok(Err(_)) => {}
                Err(_) => return,
            }
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

/// Records the lost pods, and returns whether they changed. At first nothing is recorded while a
/// missing entry is `undecided`.
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

/// Runs once. Returns the pods whose checkpoint entry is missing now. Logs and publishes what it
/// could not do, all of which the next run tries again.
pub fn run_once(
    preparer: &Preparer,
    proc: &Path,
    metrics: &Metrics,
) -> Result<BTreeSet<PodUid>, HousekeepingError> {
    let mut problems = BTreeSet::new();
    let lost = try_once(preparer, proc, metrics, &mut problems);
    if let Err(error) = &lost {
        problems.insert(format!("housekeeping ended early: {error}"));
    }
    for problem in &problems {
        tracing::warn!(problem, "housekeeping could not do everything");
    }
    let published = &preparer.allocations().published;
    published.set_housekeeping_problems(problems);
    lost
}

fn try_once(
    preparer: &Preparer,
    proc: &Path,
    metrics: &Metrics,
    problems: &mut BTreeSet<String>,
) -> Result<BTreeSet<PodUid>, HousekeepingError> {
    let known = &**preparer.allocations();
    let paths = &known.paths;
    // Under the lock, so that an allocation stored meanwhile cannot look unowned.
    let mut store = known.store.lock();
    let entries = known.entries()?;
    let mut pods = known.pods.in_order();
    // A pod that has ended needs its files as little as one that is gone; processes that are left
    // of it are orphaned.
    pods.retain(|pod| pod.phase != Phase::Ended);
    let departed = collect::departed(&pods, store.pods());
    let alive = aliquot_node_state::processes::alive(proc, &departed)
        .map_err(HousekeepingError::Processes)?;

    let damaged = store.damaged().keys().cloned().collect();
    let used = &alive | &accepted_just_now(&paths.accepted, &departed);
    let on_disk = on_disk(paths)?;
    let garbage = collect::garbage(&entries, &pods, store.all(), &damaged, &used, &on_disk);
    remove_garbage(&garbage, &mut store, paths, metrics, problems);

    let damaged: BTreeSet<PodUid> = store.damaged().keys().cloned().collect();
    // The share of a damaged allocation is unknown.
    if damaged.is_empty() {
        known.modes.lower_mps_limits(store.all());
    }
    let stored: Vec<Arc<AcceptedAllocation>> = store.shared().cloned().collect();
    drop(store);
    let accepted = || stored.iter().map(|one| &**one);
    set_count(&metrics.accepted, accepted().count());
    set_count(&metrics.damaged_shares, damaged.len());

    let published = &known.published;
    let node = published.get();
    let devices = node.inventory.gpus.iter().map(|gpu| gpu.uuid.clone());
    let devices: Vec<GpuUuid> = devices.collect();
    let mut foreign = collect::foreign(&entries, &pods, &node.ledger_ids());
    foreign.extend(collect::foreign_of_damaged(&damaged, &alive, &devices));
    let orphaned = collect::orphaned(&alive, accepted());
    let unreadable = collect::unreadable(&entries, &pods);
    published.set_holders(foreign, orphaned, unreadable);
    published.retain_refused(|uid| pods.iter().any(|pod| pod.uid == *uid));
    let held = paths.unmanaged.as_deref();
    published.set_monitor_reports(MonitorReports {
        unmeasured: monitor_reports::read(&paths.unmeasured).unwrap_or_default(),
        uncorrected: monitor_reports::read(&paths.uncorrected),
        unmanaged: held.and_then(monitor_reports::read).unwrap_or_default(),
    });

    problems.extend(preparer.refresh()?.problems);
    problems.extend(preparer.edits().remove_old_limiters());
    Ok(collect::lost(&entries, &pods, accepted()))
}

/// A failed removal does not stop the others.
fn remove_garbage(
    garbage: &Garbage,
    store: &mut Store,
    paths: &Paths,
    metrics: &Metrics,
    problems: &mut BTreeSet<String>,
) {
    for name in &garbage.names {
        match remove(paths, name) {
            Ok(()) => {
                metrics.collected.inc();
                tracing::info!(name, "removed the files of a container that is gone");
            }
            Err(error) => {
                problems.insert(format!(
                    "cannot remove the files of {name}, a container that is gone: {error}"
                ));
            }
        }
    }
    for uid in &garbage.pods {
        if let Err(error) = store.remove(uid) {
            problems.insert(format!(
                "cannot remove the accepted allocation of pod {uid}, which is gone: {error}"
            ));
        }
    }
}

/// Those of these pods whose accepted allocation was stored a moment ago.
fn accepted_just_now(directory: &Path, pods: &BTreeSet<PodUid>) -> BTreeSet<PodUid> {
    let is_new = |pod: &&PodUid| {
        let file = fs::metadata(directory.join(accepted::file_name(pod)));
        let stored = file.and_then(|file| file.modified()).ok();
        let age = stored.and_then(|stored| stored.elapsed().ok());
        age.is_none_or(|age| age < LISTED_AFTER)
    };
    pods.iter().filter(is_new).cloned().collect()
}

pub(crate) fn remove(paths: &Paths, name: &str) -> Result<(), FileError> {
    ContainerEdits::remove(paths, name)?;
    let directory = paths.container_directories.join(name);
    counters_file::unmount(&directory)?;
    files::remove(&directory)
}

/// Sends an event, once, to each pod whose accepted allocation cannot be read.
fn notify_damaged(known: &NodeAllocations, notified: &mut BTreeSet<PodUid>, notes: &EventSender) {
    let damaged = known.store.lock().damaged().clone();
    notified.retain(|uid| damaged.contains_key(uid));
    for (uid, why) in damaged {
        let Some(pod) = known.pods.get(&uid).filter(|_| !notified.contains(&uid)) else {
            continue;
        };
        let text = format!(
            "cannot read the accepted allocation of this pod on its node ({why}); the pod keeps running, and its next container start is validated against its annotation"
        );
        notes.send(device_failures::pod_event(&pod, true, "ShareDamaged", text));
        notified.insert(uid);
    }
}

/// Every name that has a CDI spec or a container directory.
pub(crate) fn on_disk(paths: &Paths) -> Result<BTreeSet<String>, FileError> {
    let mut names = ContainerEdits::names(paths)?;
    names.extend(files::names(&paths.container_directories)?);
    Ok(names.into_iter().collect())
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
