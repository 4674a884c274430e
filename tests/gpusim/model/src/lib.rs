//! The simulated machine as shared memory: cards and their facts (`state`), and what processes
//! hold and run on them (`shared`). Fed by the libraries and the command of `tests/gpusim`; must
//! export nothing to C and know neither NVML nor CUDA.

pub mod engine;
mod groups;
mod host;
mod locks;
mod member;
pub mod mig;
pub mod model;
pub mod pids;
pub mod shared;
pub mod state;
pub mod walls;
mod watch;

pub use groups::group_of;
pub use member::{Full, Member};

/// Nanoseconds of the system's clock that never goes back; the same in every process.
#[must_use]
pub fn clock() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // By libc, which finds the kernel's page where valgrind has moved it.
    // SAFETY: a known clock, and a place for its time.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}
pub use watch::{Holder, Watcher};
