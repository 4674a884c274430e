//! Liveness as the kernel sees it: a process has an open-file-description lock on the byte of its
//! slot. The lock lives with the mapping made from the locked file, so it survives `close_range`,
//! and it ends with the process, however the process dies.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;

fn byte(at: u64, kind: i32) -> libc::flock {
    libc::flock {
        l_type: i16::try_from(kind).expect("a small constant"),
        l_whence: i16::try_from(libc::SEEK_SET).expect("a small constant"),
        l_start: libc::off_t::try_from(at).expect("a place in a file"),
        l_len: 1,
        l_pid: 0,
    }
}

/// Takes the lock of a slot if no living process has it.
pub(crate) fn take(file: &File, slot: usize) -> bool {
    set(file, byte(slot as u64, libc::F_WRLCK)).is_ok()
}

/// Takes a read lock on a byte, which any number of open files may have.
pub(crate) fn share(file: &File, at: u64) -> io::Result<()> {
    set(file, byte(at, libc::F_RDLCK))
}

fn set(file: &File, lock: libc::flock) -> io::Result<()> {
    // SAFETY: the descriptor is open for the call, and the struct lives through it.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Whether another open file has a lock on a byte: that of a slot has its living process. If the
/// kernel fails, it counts as locked.
pub(crate) fn is_locked(file: &File, at: u64) -> bool {
    let mut lock = byte(at, libc::F_WRLCK);
    // SAFETY: the descriptor is open for the call, and the struct lives through it.
    let answer = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
    answer != 0 || libc::c_int::from(lock.l_type) != libc::F_UNLCK
}
