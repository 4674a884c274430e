//! Seats made ahead, and files for shares: a container's start takes one of each by a rename, where
//! making them would be a dozen files and folders, while many others start, too.
//!
//! Fed by: the agent's start, and a pause after the last that was taken. Must not: hold anything of
//! a container; outlive the agent's start, for the limiter may be another then.

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

use crate::files::{self, FileError};
use crate::tenant;
use crate::way_in::{self, Installed};

/// So many: as many containers as may well start at once.
const AHEAD: usize = 64;
/// New ones are made when for so long nobody took one.
const PAUSE: Duration = Duration::from_millis(500);

/// The seats and files that nobody has yet.
pub struct Spares {
    folder: PathBuf,
    limiter: Option<Installed>,
    state: Mutex<State>,
    taken: Notify,
}

#[derive(Default)]
struct State {
    /// The oldest goes first: of two seats of a container that an earlier release accepted the
    /// monitor takes the one that was made last for the one in use.
    ready: VecDeque<PathBuf>,
    blanks: Vec<PathBuf>,
    made: u64,
}

/// Takes away what is in the folder of such seats.
pub(crate) fn clear(folder: &Path) -> Result<(), FileError> {
    for name in files::names(folder)? {
        let left = folder.join(name);
        tenant::strip(&left)?;
        files::remove(&left)?;
    }
    Ok(())
}

impl Spares {
    /// Empty; what an earlier agent left in `folder` goes.
    pub fn new(folder: PathBuf, limiter: Option<Installed>) -> Result<Self, FileError> {
        files::directory(&folder, 0o700)?;
        clear(&folder)?;
        Ok(Self {
            folder,
            limiter,
            state: Mutex::default(),
            taken: Notify::new(),
        })
    }

    /// Puts one at `seat`, where there is none yet; for a container that gets this limiter. False:
    /// it must be made.
    pub fn take(&self, seat: &Path, limiter: Option<&Installed>) -> bool {
        if limiter != self.limiter.as_ref() {
            return false;
        }
        let Some(spare) = self.state.lock().ready.pop_front() else {
            return false;
        };
        let taken = fs::rename(&spare, seat).is_ok();
        if taken {
            self.taken.notify_one();
        } else {
            self.state.lock().ready.push_front(spare);
        }
        taken
    }

    /// An empty file to write into and to rename, if there is one.
    pub fn blank(&self) -> Option<PathBuf> {
        self.state.lock().blanks.pop()
    }

    /// Makes what is missing. Blocks.
    pub fn fill(&self) -> Result<(), FileError> {
        while let Some(blank) = self.next("share", |state| state.blanks.len()) {
            files::put(&blank, b"")?;
            self.state.lock().blanks.push(blank);
        }
        while let Some(spare) = self.next("seat", |state| state.ready.len()) {
            files::seat(&spare, &[0; limits::SIZE])?;
            if let Some(limiter) = &self.limiter {
                way_in::equip(&spare, limiter)?;
            }
            self.state.lock().ready.push_back(spare);
        }
        Ok(())
    }

    /// The path of one more, if there are too few.
    fn next(&self, kind: &str, ready: impl Fn(&State) -> usize) -> Option<PathBuf> {
        let mut state = self.state.lock();
        if ready(&state) >= AHEAD {
            return None;
        }
        state.made += 1;
        Some(self.folder.join(format!("{kind}-{}", state.made)))
    }

    /// Keeps some ready until `stop`.
    pub async fn keep(self: Arc<Self>, stop: CancellationToken) {
        loop {
            let this = Arc::clone(&self);
            match spawn_blocking(move || this.fill()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(%error, "no seats are made ahead"),
                Err(_) => return,
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.taken.notified() => {}
            }
            // Not while many start.
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
    fn a_seat_that_was_made_ahead_is_one_like_any_other() {
        let room = tempfile::tempdir().expect("tempdir");
        let source = room.path().join("libvgpu.so");
        fs::write(&source, "one").expect("written");
        let limiter = way_in::install(&source, &room.path().join("limiter")).expect("installed");
        let folder = room.path().join("spare");
        fs::create_dir_all(folder.join("left")).expect("made");
        let spares = Spares::new(folder.clone(), Some(limiter.clone())).expect("new");
        assert_eq!(files::names(&folder).expect("list"), [""; 0]);
        let (made, taken) = (room.path().join("made"), room.path().join("taken"));
        assert!(!spares.take(&taken, Some(&limiter)), "there is none");
        spares.fill().expect("filled");
        assert_eq!(files::names(&folder).expect("list").len(), 2 * AHEAD);
        assert!(!spares.take(&taken, None), "of another kind");
        assert!(spares.take(&taken, Some(&limiter)));

        let page = [7; limits::SIZE];
        files::fill(&taken, &page).expect("filled");
        files::seat(&made, &page).expect("made");
        way_in::equip(&made, &limiter).expect("equipped");
        let list = |seat: &Path, below: &str| {
            let found = files::names(&seat.join(below)).expect("list");
            let below = PathBuf::from(below);
            found.into_iter().map(move |name| below.join(name))
        };
        let all = |seat: &Path| {
            let names: Vec<PathBuf> = ["", "counters", "lib"]
                .iter()
                .flat_map(|below| list(seat, below))
                .collect();
            let files = names.iter().map(|name| seat.join(name));
            let bytes: Vec<_> = files.map(|file| fs::read(file).ok()).collect();
            (names, bytes)
        };
        assert_eq!(all(&taken), all(&made));
        // One that is there is left alone, and nothing is lost.
        assert!(!spares.take(&made, Some(&limiter)));
        assert_eq!(files::names(&folder).expect("list").len(), 2 * AHEAD - 1);
    }

    #[test]
    fn a_container_that_was_prepared_twice_got_an_older_seat_the_second_time() {
        let room = tempfile::tempdir().expect("tempdir");
        let spares = Spares::new(room.path().join("spare"), None).expect("new");
        let made = ["a", "b", "c"].map(|name| room.path().join(name));
        for spare in &made {
            fs::create_dir_all(spare.join(spare.file_name().expect("named"))).expect("made");
        }
        spares.state.lock().ready.extend(made);
        for which in ["a", "b", "c"] {
            let seat = room.path().join("taken").with_extension(which);
            assert!(spares.take(&seat, None));
            assert!(seat.join(which).is_dir(), "in the order of making");
        }
    }

    #[test]
    fn a_file_that_was_made_ahead_is_like_one_that_was_not() {
        let room = tempfile::tempdir().expect("tempdir");
        let spares = Spares::new(room.path().join("spare"), None).expect("new");
        assert_eq!(spares.blank(), None);
        spares.fill().expect("filled");
        let (made, taken) = (room.path().join("made"), room.path().join("taken"));
        files::put_by(None, &made, b"a share").expect("written");
        files::put_by(spares.blank(), &taken, b"a share").expect("written");
        let seen = |path: &Path| {
            let rights = fs::metadata(path).expect("is there").permissions().mode();
            (fs::read(path).expect("read"), rights)
        };
        assert_eq!(seen(&taken), seen(&made));
        assert_ne!(spares.blank(), spares.blank());
    }

    #[test]
    fn an_agent_that_found_files_made_ahead_by_the_one_before_never_started_again() {
        let room = tempfile::tempdir().expect("tempdir");
        let folder = room.path().join("spare");
        let before = Spares::new(folder.clone(), None).expect("new");
        before.fill().expect("filled");
        assert!(before.blank().is_some());
        Spares::new(folder.clone(), None).expect("the next agent starts");
        assert_eq!(files::names(&folder).expect("list"), [""; 0]);
    }
}
