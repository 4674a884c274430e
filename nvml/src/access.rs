//! Which processes of the node agent have the driver open. The monitor closes it while the agent changes
//! the MIG mode of a GPU: some GPUs are reset for that, which fails while another process has them open.
//!
//! Two files in the state directory are locked, and the kernel unlocks them when a process ends: a
//! process that has the driver open shares `users`; the one that needs it alone locks `request`, on
//! which the others close the driver, and then `users`. The agent creates the files and removes them when
//! it leaves the node; without them the monitor uses the driver unregistered.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const USERS: &str = "users";
const REQUEST: &str = "request";
/// The interval at which the users are checked while they close the driver.
const POLL: Duration = Duration::from_millis(20);

/// The locks of a state directory.
#[derive(Clone, Debug)]
pub struct DriverAccess {
    directory: PathBuf,
}

/// This process uses the driver, as it is registered until this is dropped.
#[derive(Debug)]
pub struct DriverUse {
    users: Option<File>,
}

impl DriverUse {
    /// Whether it is registered with the files that exist now.
    pub fn is_registered(&self) -> bool {
        let file = self.users.as_ref().map(File::metadata);
        file.is_some_and(|file| file.is_ok_and(|file| file.nlink() > 0))
    }
}

/// The other processes leave the driver closed until this is dropped.
#[derive(Debug)]
pub struct ExclusiveAccess {
    alone: bool,
    _users: File,
    _request: File,
}

impl ExclusiveAccess {
    /// Whether all other processes have closed the driver.
    pub fn is_alone(&self) -> bool {
        self.alone
    }
}

impl DriverAccess {
    pub fn new(state: &Path) -> Self {
        Self {
            directory: state.join("driver"),
        }
    }

    pub fn create(&self) -> io::Result<()> {
        // A process that may open them could keep the monitor from its work.
        let mut directory = DirBuilder::new();
        directory
            .recursive(true)
            .mode(0o700)
            .create(&self.directory)?;
        for name in [USERS, REQUEST] {
            let mut options = OpenOptions::new();
            let options = options.write(true).create(true).truncate(false);
            options.open(self.directory.join(name))?;
        }
        Ok(())
    }

    /// Registers this process as a user; `None` while another process needs the driver alone.
    pub fn join(&self) -> io::Result<Option<DriverUse>> {
        if self.is_requested()? {
            return Ok(None);
        }
        let users = self.existing(USERS)?;
        if let Some(users) = &users
            && !locked(users.try_lock_shared())?
        {
            return Ok(None);
        }
        Ok(Some(DriverUse { users }))
    }

    /// Whether a process needs the driver alone.
    pub fn is_requested(&self) -> io::Result<bool> {
        match self.existing(REQUEST)? {
            Some(request) => Ok(!locked(request.try_lock_shared())?),
            None => Ok(false),
        }
    }

    /// Asks the other processes to close the driver, and waits until they have, at most for
    /// `patience`. Waits longer for another such request to end. Blocks.
    pub fn request(&self, patience: Duration) -> io::Result<ExclusiveAccess> {
        self.create()?;
        let request = File::open(self.directory.join(REQUEST))?;
        request.lock()?;
        let users = File::open(self.directory.join(USERS))?;
        let deadline = Instant::now() + patience;
        let alone = loop {
            if locked(users.try_lock())? {
                break true;
            }
            if Instant::now() >= deadline {
                break false;
            }
            std::thread::park_timeout(POLL);
        };
        Ok(ExclusiveAccess {
            alone,
            _users: users,
            _request: request,
        })
    }

    fn existing(&self, name: &str) -> io::Result<Option<File>> {
        match File::open(self.directory.join(name)) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn locked(result: Result<(), TryLockError>) -> io::Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT_ONCE: Duration = Duration::ZERO;

    fn access() -> (tempfile::TempDir, DriverAccess) {
        let state = tempfile::tempdir().unwrap();
        let access = DriverAccess::new(state.path());
        access.create().unwrap();
        (state, access)
    }

    #[test]
    fn users_leave_the_driver_while_one_needs_it_alone() {
        let (_state, access) = access();
        let first = access.join().unwrap().unwrap();
        let second = access.join().unwrap().unwrap();
        assert!(!access.is_requested().unwrap());
        drop((first, second));

        let alone = access.request(AT_ONCE).unwrap();
        assert!(alone.is_alone() && access.is_requested().unwrap());
        assert!(access.join().unwrap().is_none());
        drop(alone);
        assert!(access.join().unwrap().is_some());
    }

    #[test]
    fn request_waits_for_users_and_reports_who_stays() {
        let (_state, access) = access();
        let user = access.join().unwrap().unwrap();
        assert!(!access.request(AT_ONCE).unwrap().is_alone());

        let requesting = access.clone();
        let request = std::thread::spawn(move || requesting.request(Duration::from_mins(1)));
        while !access.is_requested().unwrap() {
            std::thread::yield_now();
        }
        drop(user);
        assert!(request.join().unwrap().unwrap().is_alone());
    }

    #[test]
    fn uses_driver_unregistered_where_the_agent_has_no_files() {
        let state = tempfile::tempdir().unwrap();
        let access = DriverAccess::new(&state.path().join("away"));
        assert!(!access.is_requested().unwrap());
        assert!(!access.join().unwrap().unwrap().is_registered());
        assert!(!state.path().join("away").exists());

        access.create().unwrap();
        let user = access.join().unwrap().unwrap();
        assert!(user.is_registered());
        std::fs::remove_dir_all(state.path().join("away")).unwrap();
        assert!(!user.is_registered());
    }
}
