//! The agent's rounds: collects what nobody needs, finds lost checkpoints,
//! lingering and foreign holders, and audits the kubelet's two accounts.
//!
//! Fed by: a tick, and changes of the node's pods.
//! Must not: collect at start or exit, before the pods are synced, or while the
//! checkpoint cannot be read.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::{GpuUuid, PodUid};
use aliquot_k8s::event::{Note, Notes};
use thiserror::Error;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::accepted::Accepted;
use crate::checkpoint::CheckpointError;
use crate::files::{self, FileError};
use crate::metrics::{Metrics, count};
use crate::modes::mig::check;
use crate::pod::Phase;
use crate::prestart::PreStart;
use crate::proto::v1::ListPodResourcesRequest;
use crate::register::pod_resources;
use crate::{audit, cdi, collect, host, sick, strays, tenant, units, way_in};

/// Least time between two rounds, however many pods change.
const GAP: Duration = Duration::from_secs(1);
/// How long an entry must be missing before it counts as lost: the kubelet
/// forgets an ended pod before the API server says so.
const LOST_AFTER: Duration = Duration::from_secs(5);
/// Longest wait for the kubelet's `PodResources`.
const DEADLINE: Duration = Duration::from_secs(10);

/// Why a round did nothing.
#[derive(Debug, Error)]
pub enum RoundError {
    /// The checkpoint cannot be used.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Something cannot be listed or removed.
    #[error(transparent)]
    File(#[from] FileError),
    /// `/proc` cannot be listed.
    #[error("cannot list processes: {0}")]
    Processes(std::io::Error),
}

/// Rounds until `stop`, every `interval` and after changes of the pods.
pub async fn rounds(
    prestart: Arc<PreStart>,
    proc: PathBuf,
    interval: Duration,
    lost: watch::Sender<Option<BTreeSet<PodUid>>>,
    notes: Notes,
    metrics: Metrics,
    stop: CancellationToken,
) {
    let mut told = BTreeSet::new();
    let mut changes = prestart.pods.subscribe();
    let mut missing: BTreeMap<PodUid, Instant> = BTreeMap::new();
    loop {
        if prestart.pods.synced() {
            changes.borrow_and_update();
            tell_damaged(&prestart, &mut told, &notes);
            let (this, proc) = (Arc::clone(&prestart), proc.clone());
            let counted = metrics.clone();
            match spawn_blocking(move || round(&this, &proc, &counted)).await {
                Ok(Ok(found)) => {
                    let now = Instant::now();
                    let settled = settled(&mut missing, found, now);
                    metrics
                        .checkpoint_lost
                        .set(i64::try_from(settled.len()).unwrap_or(i64::MAX));
                    let open = settled.len() < missing.len();
                    lost.send_if_modified(|known| learn(known, settled, open));
                }
                Ok(Err(error)) => tracing::warn!(%error, "housekeeping did nothing"),
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

/// Those missing for long enough; remembers since when each is.
fn settled(
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

/// Takes over what is lost; whether that is new. Nothing is known at first, while
/// it is `open` whether an entry that is missing is lost.
fn learn(known: &mut Option<BTreeSet<PodUid>>, lost: BTreeSet<PodUid>, open: bool) -> bool {
    if known.is_none() && open {
        return false;
    }
    let differs = known.as_ref() != Some(&lost);
    *known = Some(lost);
    differs
}

/// One round. Returns the pods whose checkpoint entry is missing now.
pub fn round(
    prestart: &PreStart,
    proc: &std::path::Path,
    metrics: &Metrics,
) -> Result<BTreeSet<PodUid>, RoundError> {
    // Under the lock, so that a share stored meanwhile cannot look unowned.
    let mut store = prestart.store.lock();
    let entries = prestart.entries()?;
    let mut pods = prestart.pods.in_order();
    // Whose pod is over needs its share no more than whose pod is gone, and who still runs of it
    // is lingering.
    pods.retain(|pod| pod.phase != Phase::Ended);
    let departed = collect::departed(&pods, store.known());
    let alive = host::alive(proc, &departed).map_err(RoundError::Processes)?;

    let on_disk = on_disk(prestart)?;
    let damaged: BTreeSet<PodUid> = store.damaged().keys().cloned().collect();
    let shares = || store.all();
    let garbage = collect::garbage(&entries, &pods, shares(), &damaged, &alive, &on_disk);
    // What cannot be removed is tried again, and keeps nothing else from being looked after.
    for name in &garbage.names {
        match remove(prestart, name) {
            Ok(()) => {
                metrics.collected.inc();
                tracing::info!(name, "collected");
            }
            Err(error) => tracing::warn!(name, %error, "not collected; tried again"),
        }
    }
    for uid in &garbage.pods {
        if let Err(error) = store.remove(uid) {
            tracing::warn!(%uid, %error, "an accepted share is not removed; tried again");
        }
    }

    let damaged: BTreeSet<PodUid> = store.damaged().keys().cloned().collect();
    let shares: Vec<Arc<Accepted>> = store.shared().cloned().collect();
    let shares = || shares.iter().map(|share| &**share);
    drop(store);
    let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    metrics.accepted.set(number(shares().count()));
    metrics.damaged_shares.set(number(damaged.len()));
    let node = prestart.published.get();
    let units = node.inventory.gpus.iter().map(|gpu| gpu.uuid.clone());
    let units: Vec<GpuUuid> = units.collect();
    let mut foreign = collect::foreign(&entries, &pods, &node.booked_as());
    foreign.extend(collect::unclear(&damaged, &alive, &units));
    let lingering = collect::lingering(&alive, shares());
    prestart.published.holders(foreign, lingering);
    let present = |uid: &PodUid| pods.iter().any(|pod| pod.uid == *uid);
    prestart.published.keep_refused(present);
    let strays = strays::read(&prestart.paths.strays, present);
    prestart.published.strays(strays);
    prestart.refresh()?;
    if let Some(installed) = &prestart.limiter {
        let (root, specs) = (&prestart.paths.limiter, &prestart.paths.cdi);
        match way_in::collect(root, installed, specs) {
            Ok(0) => {}
            Ok(removed) => tracing::info!(removed, "versions of the limiter that nobody is given"),
            Err(error) => tracing::warn!(%error, "versions of the limiter are not collected"),
        }
    }
    Ok(collect::lost(&entries, &pods, shares()))
}

/// Takes away the files of a name.
pub(crate) fn remove(prestart: &PreStart, name: &str) -> Result<(), FileError> {
    files::remove(&prestart.paths.cdi.join(cdi::file_name(name)))?;
    let seat = prestart.paths.seats.join(name);
    tenant::strip(&seat)?;
    files::remove(&seat)
}

/// Tells the pods whose share cannot be read back, each once.
fn tell_damaged(prestart: &PreStart, told: &mut BTreeSet<PodUid>, notes: &Notes) {
    let damaged = prestart.store.lock().damaged().clone();
    told.retain(|uid| damaged.contains_key(uid));
    for (uid, why) in damaged {
        let Some(pod) = prestart.pods.get(&uid).filter(|_| !told.contains(&uid)) else {
            continue;
        };
        let text = format!(
            "what this pod was given cannot be read back from the node ({why}): it runs on, and its next start is judged anew by its annotation"
        );
        notes.send(sick::note(&pod, true, "ShareDamaged", text));
        told.insert(uid);
    }
}

/// Every name that has a spec or a seat directory.
pub(crate) fn on_disk(prestart: &PreStart) -> Result<BTreeSet<String>, FileError> {
    let specs = files::names(&prestart.paths.cdi)?;
    let specs = specs.iter().filter_map(|file| cdi::name_of(file));
    let mut names: BTreeSet<String> = specs.map(str::to_owned).collect();
    names.extend(files::names(&prestart.paths.seats)?);
    Ok(names)
}

/// Audits until `stop`, every `interval`.
pub async fn audits(
    prestart: Arc<PreStart>,
    interval: Duration,
    notes: Notes,
    metrics: Metrics,
    stop: CancellationToken,
) {
    let mut told = BTreeSet::new();
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
                    if told.insert((note.pod.uid.clone(), note.text.clone())) {
                        metrics.audit_differences.inc();
                        notes.send(note);
                    }
                }
            }
            Ok(Err(error)) => tracing::warn!(%error, "instances in containers were not compared"),
            Err(_) => return,
        }
        match audit_once(&prestart).await {
            Ok(None) => count(&metrics.audits, "skipped"),
            Ok(Some(differences)) => {
                count(&metrics.audits, "done");
                for difference in differences {
                    metrics.audit_differences.inc();
                    tracing::warn!(%difference, "the kubelet's two accounts differ");
                }
            }
            Err(error) => {
                count(&metrics.audits, "failed");
                tracing::warn!(error, "audit failed");
            }
        }
    }
}

/// Containers that see another instance than the one that was booked.
fn wrong_instances(prestart: &PreStart) -> std::io::Result<Vec<Note>> {
    let shares: Vec<Accepted> = prestart.store.lock().all().cloned().collect();
    let pods = check::concerned(&shares);
    let found = host::started_with(Path::new("/proc"), &pods, check::VARIABLE)?;
    let wrong = check::wrong(&prestart.published.get(), &shares, &found);
    let note = |one: check::Wrong| {
        let share = shares.iter().find(|share| share.pod == one.pod)?;
        Some(check::note(share, &one))
    };
    Ok(wrong.into_iter().filter_map(note).collect())
}

/// One audit; `None` when the checkpoint changed meanwhile.
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
    .map_err(|_| "PodResources did not answer within 10 s".to_owned())??;
    if entries().await? != before {
        return Ok(None);
    }
    let ours = before.iter().map(|entry| entry.resource.clone());
    let mut resources: BTreeSet<String> = ours.collect();
    resources.extend(units::resources(&prestart.published.get()));
    let listed = audit::listed(answer.get_ref(), &resources);
    let pods = prestart.pods.in_order();
    Ok(Some(audit::differences(&listed, &before, &pods)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_counts_as_lost_only_after_a_while() {
        let start = Instant::now();
        let mut missing = BTreeMap::new();
        let mut check = |seconds, found: &[&str], expected: &[&str]| {
            let set = |uids: &[&str]| uids.iter().map(|&uid| PodUid::from(uid)).collect();
            let now = start + Duration::from_secs(seconds);
            let expected: BTreeSet<PodUid> = set(expected);
            assert_eq!(
                settled(&mut missing, set(found), now),
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
    fn a_lost_checkpoint_is_not_called_healed_by_an_agent_that_just_started() {
        let lost = || BTreeSet::from([PodUid::from("u1")]);
        let mut known = None;
        assert!(!learn(&mut known, BTreeSet::new(), true));
        assert_eq!(known, None);
        assert!(learn(&mut known, lost(), false));
        assert!(!learn(&mut known, lost(), true));
        assert!(learn(&mut known, BTreeSet::new(), false));
        assert_eq!(known, Some(BTreeSet::new()));
    }
}
