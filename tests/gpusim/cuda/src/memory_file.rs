//! Files that stand for physical memory: the memory exists while one of them is open anywhere, or
//! while a process that imported it uses it. Each user has a lock on the file, which ends with its
//! last descriptor; the creator checks the lock through a descriptor of its own.

use std::fs::File;
use std::io::Error;
use std::os::fd::AsRawFd as _;

/// A descriptor of such a file.
pub(crate) struct MemoryFile(File);

fn byte(kind: i32) -> libc::flock {
    libc::flock {
        l_type: i16::try_from(kind).expect("a small constant"),
        l_whence: i16::try_from(libc::SEEK_SET).expect("a small constant"),
        l_start: 0,
        l_len: 1,
        l_pid: 0,
    }
}

/// Takes a shared lock: this descriptor and its copies keep the memory alive.
pub(crate) fn lock_shared(file: &File) -> Result<(), Error> {
    let lock = byte(libc::F_RDLCK);
    // SAFETY: the descriptor is open, and the struct lives through the call.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    if done == 0 {
        Ok(())
    } else {
        Err(Error::last_os_error())
    }
}

impl MemoryFile {
    /// Opens the same file anew.
    pub(crate) fn reopen(file: &File) -> Result<Self, Error> {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let own = File::options().read(true).write(true).open(path)?;
        Ok(Self(own))
    }

    /// As `reopen`, with a shared lock that keeps the memory alive.
    pub(crate) fn open_locked(file: &File) -> Result<Self, Error> {
        let own = Self::reopen(file)?;
        lock_shared(&own.0)?;
        Ok(own)
    }

    /// Whether another descriptor keeps the memory alive. If the kernel fails, it does.
    pub(crate) fn is_in_use(&self) -> bool {
        let mut lock = byte(libc::F_WRLCK);
        // SAFETY: the descriptor is open, and the struct lives through the call.
        let code = unsafe { libc::fcntl(self.0.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
        code != 0 || i32::from(lock.l_type) != libc::F_UNLCK
    }
}
