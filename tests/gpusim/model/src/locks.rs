//! Liveness by the kernel's own word: a process holds the open-file-description lock on the byte
//! of its slot. The lock lives with the mapping made from the locked file, so it survives
//! `close_range`, and ends with the process however that dies. Must hold no state.

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

/// Takes the lock of a slot if nobody alive has it.
pub(crate) fn take(file: &File, slot: usize) -> bool {
    let wanted = byte(slot);
    // SAFETY: the descriptor is open for the call, and the struct lives through it.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const wanted) == 0 }
}

/// Somebody alive holds the slot, seen through a descriptor that holds none. When the kernel
/// cannot say, it counts as held.
pub(crate) fn held(file: &File, slot: usize) -> bool {
    let mut asked = byte(slot);
    // SAFETY: the descriptor is open for the call, and the struct lives through it.
    let answer = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut asked) };
    answer != 0 || libc::c_int::from(asked.l_type) != libc::F_UNLCK
}
