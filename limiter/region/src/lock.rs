//! Locks on single bytes of a file. They belong to an open file description, not to a process: if
//! the file is locked, mapped and closed, the lock lives as long as the mapping, even through
//! `close_range`, and ends with the process however it dies. Other PID namespaces see it too.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _};

use crate::map::checked;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockMode {
    /// By one open file description.
    Exclusive,
    /// By any number of open file descriptions.
    Shared,
    Unlocked,
}

fn bytes(kind: libc::c_int, from: usize, length: usize) -> io::Result<libc::flock> {
    // SAFETY: zero is a value of every field; `l_pid` must be 0 for these locks.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::c_short::try_from(kind).map_err(io::Error::other)?;
    lock.l_whence = libc::c_short::try_from(libc::SEEK_SET).map_err(io::Error::other)?;
    lock.l_start = libc::off_t::try_from(from).map_err(io::Error::other)?;
    lock.l_len = libc::off_t::try_from(length).map_err(io::Error::other)?;
    Ok(lock)
}

/// Locks or unlocks the byte at `at`; false if another lock conflicts.
pub(crate) fn set(file: impl AsFd, at: usize, hold: LockMode) -> io::Result<bool> {
    let kind = match hold {
        LockMode::Exclusive => libc::F_WRLCK,
        LockMode::Shared => libc::F_RDLCK,
        LockMode::Unlocked => libc::F_UNLCK,
    };
    let lock = bytes(kind, at, 1)?;
    // SAFETY: the descriptor is open and `lock` is a whole `flock`.
    if unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Ok(false),
        _ => Err(error),
    }
}

/// Start and end of a lock that others have somewhere in `from..to`.
pub(crate) fn locked_range(
    file: &File,
    from: usize,
    to: usize,
) -> io::Result<Option<(usize, usize)>> {
    let mut lock = bytes(libc::F_WRLCK, from, to - from)?;
    // SAFETY: the descriptor is open and `lock` is a whole `flock` to write to.
    checked(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) })?;
    if libc::c_int::from(lock.l_type) == libc::F_UNLCK {
        return Ok(None);
    }
    let first = usize::try_from(lock.l_start).unwrap_or(0);
    let end = match usize::try_from(lock.l_len) {
        Ok(0) | Err(_) => to,
        Ok(length) => first.saturating_add(length),
    };
    Ok(Some((first, end)))
}
