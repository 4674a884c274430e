//! A node that Aliquot leaves: what the agent wrote on its object and put on its disk is taken
//! away, but for what pods that run there use.
//!
//! Fed by: the node annotation [`ASKED`], which [`everywhere`] sets when the chart is removed.
//! Must not: take a file that a container has, or leave because of a wish that is over.

pub mod everywhere;
mod object;

use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aliquot_serve::{Readiness, admin, http};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::agent::AgentError;
use crate::files;
use crate::housekeeping::{RoundError, on_disk, remove};
use crate::inventory::Published;
use crate::node::Seen;
use crate::pod::Phase;
use crate::prestart::PreStart;
use crate::settings::Settings;
use crate::spare;
use crate::vanished::is_none_left;
use crate::{collect, host, units};

/// The node annotation by which its agent is asked to leave: the time until which that is meant,
/// in RFC 3339. The agent takes it away last.
pub const ASKED: &str = "aliquot.dev/leave";
/// Readiness: never, once the node was left.
const LEFT: &str = "left";
/// Longest wait for the kubelet to count none of our seats.
const SHOWN: Duration = Duration::from_secs(15);
/// The folder of the keeper of MPS daemons, which is another process.
const OF_THE_KEEPER: &str = "mps";

/// Whether this annotation asks the agent to leave at `now`.
pub fn is_asked(until: Option<&str>, now: Timestamp) -> bool {
    let until = until.and_then(|text| text.parse::<Timestamp>().ok());
    until.is_some_and(|until| now < until)
}

/// Waits among `tasks` for the wish that we leave; whether it came and `work` ended for it.
pub(crate) fn on_request(
    tasks: &TaskTracker,
    seen: &watch::Sender<Option<Seen>>,
    published: &Published,
    work: &CancellationToken,
) -> Arc<AtomicBool> {
    let left = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&left);
    tasks.spawn(when_asked(
        seen.subscribe(),
        published.clone(),
        told,
        work.clone(),
    ));
    left
}

/// Waits until the node asks us to leave. Then the kubelet is shown no seat, and when it counts
/// none, `left` is set and `work` ends.
async fn when_asked(
    mut seen: watch::Receiver<Option<Seen>>,
    published: Published,
    left: Arc<AtomicBool>,
    work: CancellationToken,
) {
    let asked = |node: &Option<Seen>| {
        let until = node.as_ref().and_then(|node| node.leave.as_deref());
        is_asked(until, Timestamp::now())
    };
    tokio::select! {
        () = work.cancelled() => return,
        told = seen.wait_for(asked) => if told.is_err() { return },
    }
    tracing::info!("asked to leave the node");
    let resources = units::resources(&published.get());
    published.leave();
    let counted = |node: &Option<Seen>| {
        let shown = node.as_ref().map(|node| &node.resources);
        shown.is_none_or(|shown| resources.iter().all(|name| is_none_left(shown, name)))
    };
    let counted = tokio::time::timeout(SHOWN, seen.wait_for(counted)).await;
    if !matches!(counted, Ok(Ok(_))) {
        tracing::warn!(wait = ?SHOWN, "the kubelet still counts seats");
    }
    left.store(true, Ordering::Relaxed);
    work.cancel();
}

/// Leaves: the disk, then the node's object. What fails is told and left.
pub(crate) async fn leave(prestart: &Arc<PreStart>, client: &Client, settings: &Settings) {
    let (this, state) = (Arc::clone(prestart), settings.state_dir.clone());
    match spawn_blocking(move || disk(&this, &state, Path::new("/proc"))).await {
        Ok(Ok(true)) => tracing::info!("nothing of ours is left on the disk"),
        Ok(Ok(false)) => tracing::warn!(
            folder = %settings.state_dir.display(),
            "files that pods of this node use stay"
        ),
        Ok(Err(error)) => tracing::error!(%error, "files of ours are left"),
        Err(error) => tracing::error!(%error, "files of ours are left"),
    }
    object::clear(client, &settings.node_name).await;
}

/// Takes what no pod that runs here uses from the disk; whether nothing is left. A pod whose
/// processes live counts, a checkpoint entry does not: nobody can start any more.
pub fn disk(prestart: &PreStart, state: &Path, proc: &Path) -> Result<bool, RoundError> {
    if !prestart.pods.synced() {
        return Ok(false);
    }
    let paths = &prestart.paths;
    let store = prestart.store.lock();
    let mut pods = prestart.pods.in_order();
    pods.retain(|pod| pod.phase != Phase::Ended);
    let departed = collect::departed(&pods, store.known());
    let alive = host::alive(proc, &departed).map_err(RoundError::Processes)?;
    let there = on_disk(prestart)?;
    let damaged = store.damaged().keys().cloned().collect();
    let garbage = collect::garbage(&[], &pods, store.all(), &damaged, &alive, &there);
    for name in &garbage.names {
        remove(prestart, name)?;
    }
    for uid in &garbage.pods {
        files::remove(&paths.accepted.join(format!("{uid}.json")))?;
    }
    spare::clear(&paths.spare)?;
    for name in files::names(&paths.plugins)? {
        if name.starts_with("aliquot-") && Path::new(&name).extension() == Some("sock".as_ref()) {
            files::remove(&paths.plugins.join(name))?;
        }
    }
    let kept = store.known().count() > garbage.pods.len();
    if kept || there.len() > garbage.names.len() {
        return Ok(false);
    }
    Ok(folder(state)?)
}

/// Removes the state folder; false where something of another process is in it.
fn folder(state: &Path) -> Result<bool, files::FileError> {
    let mut kept = false;
    for name in files::names(state)? {
        let path = state.join(&name);
        if name == OF_THE_KEEPER && !files::names(&path)?.is_empty() {
            kept = true;
        } else {
            files::remove(&path)?;
        }
    }
    if kept {
        return Ok(false);
    }
    // In our container it is where the host's folder is mounted, and stays; the host's own is
    // reached by the process that started us, which is the container runtime's.
    let host = as_seen_by(std::os::unix::process::parent_id(), state);
    let gone = fs::remove_dir(state).or_else(|_| fs::remove_dir(&host));
    if let Err(error) = gone {
        tracing::debug!(%error, folder = %state.display(), "the empty folder stays");
    }
    Ok(true)
}

/// A path as this process sees it.
fn as_seen_by(process: u32, path: &Path) -> PathBuf {
    let below = path.components().filter(|part| *part != Component::RootDir);
    PathBuf::from(format!("/proc/{process}/root")).join(below.collect::<PathBuf>())
}

/// Lives on without work, so that the agent is not started anew on a node that it left.
pub(crate) async fn idle(settings: &Settings, stop: CancellationToken) -> Result<(), AgentError> {
    let readiness = Readiness::new([LEFT]);
    readiness.fails(LEFT, "the node was left; Aliquot is being removed");
    let router = admin::router(readiness, Arc::new(Registry::default()));
    let listener = http::plain(http::bind(settings.listen).await?);
    if let Err(error) = http::serve(listener, router, stop.clone(), http::DRAIN).await {
        tracing::warn!(%error, "health is not served");
        stop.cancelled().await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_to_leave_holds_until_its_time_and_no_longer() {
        let check = |until: Option<&str>, expected: bool| {
            let now: Timestamp = "2026-11-22T10:00:00Z".parse().expect("a time");
            assert_eq!(is_asked(until, now), expected, "{until:?}");
        };
        check(None, false);
        check(Some("2026-11-22T10:00:30Z"), true);
        check(Some("2026-11-22T09:59:59Z"), false);
        check(Some("soon"), false);
    }

    #[test]
    fn the_state_folder_goes_with_all_that_is_in_it_but_the_keepers() {
        let check = |files: &[&str], expected: bool| {
            let room = tempfile::tempdir().expect("tempdir");
            let state = room.path().join("state");
            for file in files {
                let path = state.join(file);
                fs::create_dir_all(path.parent().expect("in a folder")).expect("made");
                fs::write(path, "").expect("written");
            }
            assert_eq!(folder(&state).expect("removed"), expected, "{files:?}");
            assert_eq!(state.exists(), !expected, "{files:?}");
        };
        check(&["cards.json", "seats/a/limits"], true);
        check(&["cards.json", "mps/GPU-a/wish"], false);
    }

    #[test]
    fn the_hosts_own_folder_is_found_by_a_process_of_the_host() {
        let found = as_seen_by(7, Path::new("/var/lib/aliquot"));
        assert_eq!(found, Path::new("/proc/7/root/var/lib/aliquot"));
    }
}
