//! Liveness as the kernel sees it: a process has an open-file-description lock on the byte of its
//! slot. The lock lives with the mapping made from the locked file, so it survives `close_range`,
//! and it ends with the process, however the process dies.

use std::fs::File;
use std::os::fd::AsRawFd as _;

fn byte(slot: usize) -> libc::flock {
    libc::flock {
        l_type: i16::try_from(libc::F_WRLCK).expect("a small constant"),
        l_whence: i16::try_from(libc::SEEK_SET).expect("a small constant"),
        l_start: libc::off_t::try_from(slot).expect("fewer slots than bytes"),
        l_len: 1,
        l_pid: 0,
    }
}

/// Takes the lock of a slot if no living process has it.
pub(crate) fn take(file: &File, slot: usize) -> bool {
    let lock = byte(slot);
    // SAFETY: the descriptor is open for the call, and the struct lives through it.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) == 0 }
}

/// Whether a living process owns the slot, asked through a descriptor without a lock. If the kernel
/// fails, the slot counts as locked.
pub(crate) fn is_locked(file: &File, slot: usize) -> bool {
    let mut lock = byte(slot);
    // SAFETY: the descriptor is open for the call, and the struct lives through it.
    let answer = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
    answer != 0 || libc::c_int::from(lock.l_type) != libc::F_UNLCK
}
