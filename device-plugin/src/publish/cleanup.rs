//! Cleanup of a node: removes what the agent wrote to the Node object and to the disk, except files
//! that running pods use. Requested by the node annotation [`CLEANUP_UNTIL`], which [`cluster`]
//! sets when the chart is removed; an expired request is ignored.

pub mod cluster;
mod node_object;

use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aliquot_node_state::{accepted, processes};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use crate::allocation::collect;
use crate::allocation::housekeeping::{HousekeepingError, on_disk, remove};
use crate::allocation::node_allocations::NodeAllocations;
use crate::files;
use crate::gpus::inventory::NodePublisher;
use crate::node_view::NodeView;
use crate::settings::Settings;

/// The node annotation that asks its agent to clean up: the time until which the request is valid,
/// in RFC 3339. The agent removes it last.
pub const CLEANUP_UNTIL: &str = "aliquot.dev/cleanup";
/// Longest wait until the kubelet counts none of our replicas.
const DEREGISTER_TIMEOUT: Duration = Duration::from_secs(15);
/// The folder of the MPS supervisor, which is another process.
const MPS_FOLDER: &str = "mps";

/// Whether this annotation asks the agent to clean up at `now`.
pub fn is_requested(until: Option<&str>, now: Timestamp) -> bool {
    let until = until.and_then(|text| text.parse::<Timestamp>().ok());
    until.is_some_and(|until| now < until)
}

/// Waits for a request to clean up, withdraws all replicas from the kubelet, and when the kubelet
/// counts none, cancels `work`. False if `work` ended without a request.
pub(crate) async fn on_request(
    mut node_view: watch::Receiver<Option<NodeView>>,
    published: NodePublisher,
    work: CancellationToken,
) -> bool {
    let requested = |node: &Option<NodeView>| {
        let until = node
            .as_ref()
            .and_then(|node| node.annotation(CLEANUP_UNTIL));
        is_requested(until, Timestamp::now())
    };
    tokio::select! {
        () = work.cancelled() => return false,
        changed = node_view.wait_for(requested) => if changed.is_err() { return false },
    }
    tracing::info!("asked to clean up the node");
    let resources = published.get().resources();
    published.set_cleaning_up();
    let counted = |node: &Option<NodeView>| {
        let node = node.as_ref();
        node.is_none_or(|node| resources.iter().all(|name| node.counts_none_of(name)))
    };
    let counted = tokio::time::timeout(DEREGISTER_TIMEOUT, node_view.wait_for(counted)).await;
    if !matches!(counted, Ok(Ok(_))) {
        tracing::warn!(wait = ?DEREGISTER_TIMEOUT, "the kubelet still counts GPU replicas; cleaning up anyway");
    }
    work.cancel();
    true
}

/// Cleans the disk, then the Node object. Logs what fails and goes on.
pub(crate) async fn clean_up(
    allocations: &Arc<NodeAllocations>,
    client: &Client,
    settings: &Settings,
) {
    let (this, state) = (Arc::clone(allocations), settings.state_dir.clone());
    match spawn_blocking(move || clean_disk(&this, &state, Path::new("/proc"))).await {
        Ok(Ok(true)) => tracing::info!("removed all files of Aliquot from the node"),
        Ok(Ok(false)) => tracing::warn!(
            folder = %settings.state_dir.display(),
            "files that running pods use stay on the node"
        ),
        Ok(Err(error)) => {
            tracing::error!(%error, "cannot remove all files of Aliquot from the node");
        }
        Err(error) => tracing::error!(%error, "cannot remove all files of Aliquot from the node"),
    }
    node_object::clear(client, &settings.node_name).await;
}

/// Removes the files that no running pod uses; returns whether none is left. A pod with live
/// processes counts, a checkpoint entry does not: no container can start any more.
pub fn clean_disk(
    allocations: &NodeAllocations,
    state: &Path,
    proc: &Path,
) -> Result<bool, HousekeepingError> {
    if !allocations.pods.synced() {
        return Ok(false);
    }
    let paths = &allocations.paths;
    let store = allocations.store.lock();
    let pods = allocations.pods.in_order();
    let departed = collect::departed(&pods, store.pods());
    let alive = processes::alive(proc, &departed).map_err(HousekeepingError::Processes)?;
    let there = on_disk(paths)?;
    let damaged = store.damaged().keys().cloned().collect();
    let garbage = collect::garbage(&[], &pods, store.all(), &damaged, &alive, &there);
    for name in &garbage.names {
        remove(paths, name)?;
    }
    for uid in &garbage.pods {
        files::remove(&paths.accepted.join(accepted::file_name(uid)))?;
    }
    for name in files::names(&paths.plugins)? {
        if name.starts_with("aliquot-") && Path::new(&name).extension() == Some("sock".as_ref()) {
            files::remove(&paths.plugins.join(name))?;
        }
    }
    let retained = store.pods().count() > garbage.pods.len();
    if retained || there.len() > garbage.names.len() {
        return Ok(false);
    }
    for folder in [&paths.programs, &paths.toolkit] {
        files::remove(folder)?;
    }
    Ok(remove_state_folder(state)?)
}

/// Removes the state folder; false while it contains files of another process.
fn remove_state_folder(state: &Path) -> Result<bool, files::FileError> {
    let mut retained = false;
    for name in files::names(state)? {
        let path = state.join(&name);
        if name == MPS_FOLDER && !files::names(&path)?.is_empty() {
            retained = true;
        } else {
            files::remove(&path)?;
        }
    }
    if retained {
        return Ok(false);
    }
    // In our container the folder is a mount point and stays; the host's own is reached through the
    // parent process, which belongs to the container runtime.
    let host = path_in_root_of(std::os::unix::process::parent_id(), state);
    let gone = fs::remove_dir(state).or_else(|_| fs::remove_dir(&host));
    if let Err(error) = gone {
        tracing::debug!(%error, folder = %state.display(), "cannot remove the empty folder");
    }
    Ok(true)
}

/// A path as this process sees it.
fn path_in_root_of(process: u32, path: &Path) -> PathBuf {
    let below = path.components().filter(|part| *part != Component::RootDir);
    PathBuf::from(format!("/proc/{process}/root")).join(below.collect::<PathBuf>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn honors_cleanup_request_until_it_expires() {
        let check = |until: Option<&str>, expected: bool| {
            let now: Timestamp = "2026-11-22T10:00:00Z".parse().expect("a time");
            assert_eq!(is_requested(until, now), expected, "{until:?}");
        };
        check(None, false);
        check(Some("2026-11-22T10:00:30Z"), true);
        check(Some("2026-11-22T09:59:59Z"), false);
        check(Some("soon"), false);
    }

    #[test]
    fn removes_state_folder_except_mps_files() {
        for (file, expected) in [("containers/a/limits", true), ("mps/GPU-a/spec", false)] {
            let dir = tempfile::tempdir().expect("tempdir");
            let state = dir.path().join("state");
            for file in ["layout.json", file] {
                let path = state.join(file);
                fs::create_dir_all(path.parent().expect("in a folder")).expect("made");
                fs::write(path, "").expect("written");
            }
            let removed = remove_state_folder(&state).expect("removed");
            assert_eq!((removed, state.exists()), (expected, !expected), "{file}");
        }
    }
}
