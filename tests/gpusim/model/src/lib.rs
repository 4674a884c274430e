//! The simulated machine as shared memory: its GPUs (`state`), and what processes use and run on
//! them (`shared`). It exports nothing to C and knows neither NVML nor CUDA.

pub mod device_nodes;
pub mod engine;
pub mod exports;
mod groups;
mod locks;
mod member;
pub mod memory_limits;
pub mod mig;
pub mod model;
pub mod pids;
pub mod shared;
pub mod state;
pub mod suspension;
mod usage_reader;

pub use groups::group_of;
pub use member::{GpuOutOfMemory, Member};
pub use usage_reader::{ProcessUsage, UsageReader};

/// Which devices this process may open, by UUID or index: by its device nodes or, on a machine
/// without them, as the environment of its container says: Aliquot's own variable, or the one that
/// NVIDIA's runtime turns into device nodes.
#[must_use]
pub fn visible_devices(machine: &model::Machine) -> Option<String> {
    let variable = |name| std::env::var(name).ok();
    device_nodes::openable(machine)
        .or_else(|| variable("ALIQUOT_VISIBLE_DEVICES"))
        .or_else(|| variable("NVIDIA_VISIBLE_DEVICES"))
}

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
