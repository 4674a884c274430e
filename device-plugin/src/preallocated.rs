//! Preallocated container directories, and empty files for accepted allocations: a container's
//! start takes one of each by a rename, where creating them would be a dozen files and folders,
//! while many others start, too. They contain nothing of a container, and an agent that starts
//! removes those of the one before, because its limiter may be another.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aliquot_region::limits;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use crate::counters_file;
use crate::files::{self, FileError};
use crate::injection::{self, InstalledLimiter};

/// As many as containers may well start at once.
const COUNT: usize = 64;
/// Replenished when none was taken for this long.
const PAUSE: Duration = Duration::from_millis(500);

/// The directories and files that no container has yet.
pub struct Preallocated {
    folder: PathBuf,
    limiter: Option<InstalledLimiter>,
    state: Mutex<State>,
    taken: Notify,
}

#[derive(Default)]
struct State {
    /// Oldest first: of two directories of a container that an earlier release accepted, the
    /// monitor takes the one that was created last for the one in use.
    directories: VecDeque<PathBuf>,
    files: Vec<PathBuf>,
    created: u64,
}

/// Removes the preallocated directories and files in this folder.
pub(crate) fn clear(folder: &Path) -> Result<(), FileError> {
    for name in files::names(folder)? {
        let left = folder.join(name);
        counters_file::unmount(&left)?;
        files::remove(&left)?;
    }
    Ok(())
}

impl Preallocated {
    /// Empty; removes what an earlier agent left in `folder`.
    pub fn new(folder: PathBuf, limiter: Option<InstalledLimiter>) -> Result<Self, FileError> {
        files::directory(&folder, 0o700)?;
        clear(&folder)?;
        Ok(Self {
            folder,
            limiter,
            state: Mutex::default(),
            taken: Notify::new(),
        })
    }

    /// Moves a directory to `target`, where none exists yet, for a container with this limiter.
    /// False: it must be created.
    pub fn take_directory(&self, target: &Path, limiter: Option<&InstalledLimiter>) -> bool {
        if limiter != self.limiter.as_ref() {
            return false;
        }
        let Some(directory) = self.state.lock().directories.pop_front() else {
            return false;
        };
        let taken = fs::rename(&directory, target).is_ok();
        if taken {
            self.taken.notify_one();
        } else {
            self.state.lock().directories.push_front(directory);
        }
        taken
    }

    /// An empty file to write and to rename, if there is one.
    pub fn take_file(&self) -> Option<PathBuf> {
        self.state.lock().files.pop()
    }

    /// Creates what is missing. Blocks.
    pub fn replenish(&self) -> Result<(), FileError> {
        while let Some(file) = self.next_path("share", |state| state.files.len()) {
            files::put(&file, b"")?;
            self.state.lock().files.push(file);
        }
        while let Some(directory) = self.next_path("seat", |state| state.directories.len()) {
            files::container_directory(&directory, &[0; limits::SIZE])?;
            if let Some(limiter) = &self.limiter {
                injection::add_to_directory(&directory, limiter)?;
            }
            self.state.lock().directories.push_back(directory);
        }
        Ok(())
    }

    /// The path of a new one, if there are too few.
    fn next_path(&self, kind: &str, count: impl Fn(&State) -> usize) -> Option<PathBuf> {
        let mut state = self.state.lock();
        if count(&state) >= COUNT {
            return None;
        }
        state.created += 1;
        Some(self.folder.join(format!("{kind}-{}", state.created)))
    }

    /// Replenishes until `stop`.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        loop {
            let this = Arc::clone(&self);
            match spawn_blocking(move || this.replenish()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::warn!(%error, "cannot preallocate container directories; they are created when containers start");
                }
                Err(_) => return,
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.taken.notified() => {}
            }
            // Not while many containers start.
            while tokio::time::timeout(PAUSE, self.taken.notified())
                .await
                .is_ok()
            {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn preallocated_directory_equals_new_one() {
        let dir = tempfile::tempdir().expect("tempdir");
        let source = dir.path().join("libvgpu.so");
        fs::write(&source, "one").expect("written");
        let limiter = injection::install(&source, &dir.path().join("limiter")).expect("installed");
        let folder = dir.path().join("spare");
        fs::create_dir_all(folder.join("left")).expect("made");
        let preallocated = Preallocated::new(folder.clone(), Some(limiter.clone())).expect("new");
        assert_eq!(files::names(&folder).expect("list"), [""; 0]);
        let (made, taken) = (dir.path().join("made"), dir.path().join("taken"));
        assert!(
            !preallocated.take_directory(&taken, Some(&limiter)),
            "there is none"
        );
        preallocated.replenish().expect("filled");
        assert_eq!(files::names(&folder).expect("list").len(), 2 * COUNT);
        assert!(
            !preallocated.take_directory(&taken, None),
            "of another kind"
        );
        assert!(preallocated.take_directory(&taken, Some(&limiter)));

        let page = [7; limits::SIZE];
        files::write_limits(&taken, &page).expect("filled");
        files::container_directory(&made, &page).expect("made");
        injection::add_to_directory(&made, &limiter).expect("added");
        let list = |directory: &Path, below: &str| {
            let found = files::names(&directory.join(below)).expect("list");
            let below = PathBuf::from(below);
            found.into_iter().map(move |name| below.join(name))
        };
        let all = |directory: &Path| {
            let names: Vec<PathBuf> = ["", "counters", "lib"]
                .iter()
                .flat_map(|below| list(directory, below))
                .collect();
            let files = names.iter().map(|name| directory.join(name));
            let bytes: Vec<_> = files.map(|file| fs::read(file).ok()).collect();
            (names, bytes)
        };
        assert_eq!(all(&taken), all(&made));
        // An existing directory is left alone, and nothing is lost.
        assert!(!preallocated.take_directory(&made, Some(&limiter)));
        assert_eq!(files::names(&folder).expect("list").len(), 2 * COUNT - 1);
    }

    #[test]
    fn hands_out_preallocated_directories_oldest_first() {
        let dir = tempfile::tempdir().expect("tempdir");
        let preallocated = Preallocated::new(dir.path().join("spare"), None).expect("new");
        let made = ["a", "b", "c"].map(|name| dir.path().join(name));
        for directory in &made {
            fs::create_dir_all(directory.join(directory.file_name().expect("named")))
                .expect("made");
        }
        preallocated.state.lock().directories.extend(made);
        for which in ["a", "b", "c"] {
            let target = dir.path().join("taken").with_extension(which);
            assert!(preallocated.take_directory(&target, None));
            assert!(target.join(which).is_dir(), "in the order of creation");
        }
    }

    #[test]
    fn preallocated_file_equals_new_one() {
        let dir = tempfile::tempdir().expect("tempdir");
        let preallocated = Preallocated::new(dir.path().join("spare"), None).expect("new");
        assert_eq!(preallocated.take_file(), None);
        preallocated.replenish().expect("filled");
        let (made, taken) = (dir.path().join("made"), dir.path().join("taken"));
        files::put_reusing(None, &made, b"a share").expect("written");
        files::put_reusing(preallocated.take_file(), &taken, b"a share").expect("written");
        let read = |path: &Path| {
            let rights = fs::metadata(path).expect("is there").permissions().mode();
            (fs::read(path).expect("read"), rights)
        };
        assert_eq!(read(&taken), read(&made));
        assert_ne!(preallocated.take_file(), preallocated.take_file());
    }

    #[test]
    fn starts_over_preallocated_files_of_previous_agent() {
        let dir = tempfile::tempdir().expect("tempdir");
        let folder = dir.path().join("spare");
        let before = Preallocated::new(folder.clone(), None).expect("new");
        before.replenish().expect("filled");
        assert!(before.take_file().is_some());
        Preallocated::new(folder.clone(), None).expect("the next agent starts");
        assert_eq!(files::names(&folder).expect("list"), [""; 0]);
    }
}
