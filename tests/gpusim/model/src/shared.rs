//! The layout of `<state>.cuda`: what every CUDA process uses on every GPU, counted by the process
//! itself, in records that never move. Zeroes are a valid start.
//!
//! A process owns slot n for as long as it has the file lock on byte n (see `locks`). A GPU's sums
//! are changed under the GPU's lock word; a process that finds its owner dead takes the lock over.

use std::fs::{File, OpenOptions};
use std::io;
use std::mem::size_of;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::memory_limits::{MAX_MEMORY_LIMITS, MemoryLimitRecord};
use crate::model::MAX_GPUS;
use crate::state::{no_state, replace};

/// Most processes at once.
pub const MAX_SLOTS: usize = 1024;

/// The whole file.
#[repr(C)]
pub struct SharedUsage {
    /// Slots from here on were never claimed.
    pub(crate) top: AtomicU64,
    /// Counts memory that was ever shared (`exports`).
    pub(crate) next_export: AtomicU64,
    pub(crate) gpus: [GpuRecord; MAX_GPUS],
    pub(crate) slots: [Slot; MAX_SLOTS],
}

/// One GPU.
#[repr(C)]
pub struct GpuRecord {
    /// 0: free; else the owner's generation and slot.
    pub(crate) lock: AtomicU64,
    /// Bytes used by all slots together.
    pub(crate) used: AtomicU64,
    /// Odd while the lock's owner changes something.
    pub(crate) sequence: AtomicU64,
    /// The moment up to which its work is computed (`engine`).
    pub(crate) now: AtomicU64,
    /// Whose time slice it is: of a process, or of an MPS server for its clients (`Member::token`);
    /// 0: nobody's yet.
    pub(crate) slice_owner: AtomicU64,
    /// When the GPU has changed to the slice's owner, and when the slice ends.
    pub(crate) switch_end: AtomicU64,
    pub(crate) slice_end: AtomicU64,
    /// `groups` was full when another group came.
    pub(crate) groups_overflowed: AtomicU64,
    /// Peak of the managed bytes on the host for lack of memory on this GPU.
    pub(crate) host_peak: AtomicU64,
    /// Records of `memory_limits` that were ever used.
    pub(crate) memory_limit_count: AtomicU64,
    /// Peak bytes of groups of processes.
    pub(crate) groups: [Group; MAX_GROUPS],
    /// The driver's own limits of cgroups.
    pub(crate) memory_limits: [MemoryLimitRecord; MAX_MEMORY_LIMITS],
    /// Memory that processes share.
    pub(crate) exports: [ExportRecord; MAX_EXPORTS],
}

/// Memory that processes share (`exports`).
#[repr(C)]
pub(crate) struct ExportRecord {
    /// Its number; 0: the record is free.
    pub(crate) number: AtomicU64,
    pub(crate) bytes: AtomicU64,
    /// The process (`Member::token`) that is charged for it; 0: it has none any more.
    pub(crate) owner: AtomicU64,
    pub(crate) place: AtomicU64,
}

/// Shared memory on one GPU at once.
const MAX_EXPORTS: usize = 256;

/// Processes whose sum matters: those of one container.
#[repr(C)]
pub(crate) struct Group {
    /// 0: unused.
    pub(crate) name: AtomicU64,
    /// Bytes.
    pub(crate) peak: AtomicU64,
}

/// Groups whose peak is recorded on one GPU.
pub(crate) const MAX_GROUPS: usize = 64;

/// One process.
#[repr(C)]
pub struct Slot {
    /// 0: never claimed; else counts the claims.
    pub(crate) generation: AtomicU64,
    /// The process's pid, as seen in its own pid namespace.
    pub(crate) pid: AtomicU64,
    /// Inode of the pid namespace of that id; 0: not known.
    pub(crate) namespace: AtomicU64,
    /// Its group (`group_of`).
    pub(crate) group: AtomicU64,
    /// The MPS server (`Member::token`) through which it uses the GPUs; 0: none.
    pub(crate) mps: AtomicU64,
    /// Percent of the GPUs that its MPS server lets it fill; 0: all.
    pub(crate) percent: AtomicU64,
    /// Equals `generation` once the counters of the slot's last owner are cleared.
    pub(crate) settled: AtomicU64,
    /// Its cgroup (`memory_limits`).
    pub(crate) cgroup: AtomicU64,
    /// The instance that it uses: GPU instance above 32 bits of compute instance, counted from 1;
    /// 0: whole GPUs.
    pub(crate) instance: AtomicU64,
    /// Whether it is suspended (`suspension`).
    pub(crate) suspension: AtomicU64,
    pub(crate) counters: [UsageCounters; MAX_GPUS],
}

/// What one process uses on one GPU.
#[repr(C)]
pub struct UsageCounters {
    /// Bytes of the GPU, contexts and unused parts of blocks included.
    pub used: AtomicU64,
    /// The most that `used` ever was.
    pub peak: AtomicU64,
    /// Contexts.
    pub contexts: AtomicU64,
    /// Bytes of `used` that may move to the host when others need the memory.
    pub(crate) managed: AtomicU64,
    /// Bytes that were moved so since the process last asked.
    pub(crate) evicted: AtomicU64,
    /// Nanoseconds that its work ran.
    pub busy: AtomicU64,
    /// Work that was queued, counted from the process's start, and the number up to which all of it
    /// is done.
    pub(crate) pushed: AtomicU64,
    pub(crate) done: AtomicU64,
    /// Managed bytes that the GPU used and that are on the host now.
    pub(crate) host: AtomicU64,
    /// Bytes that the process imported from others.
    pub imported: AtomicU64,
    /// What `used` and `contexts` were before the process was suspended.
    pub(crate) suspended: AtomicU64,
    pub(crate) suspended_contexts: AtomicU64,
    pub(crate) queue: [WorkItem; QUEUE],
    /// Busy nanoseconds of late, by `BUCKET`: the bucket's number above 32 bits of time.
    pub(crate) history: [AtomicU64; BUCKETS],
}

/// One piece of work, at its number modulo `QUEUE`.
#[repr(C)]
pub(crate) struct WorkItem {
    /// Nanoseconds of it that are left, on a GPU of its own.
    pub(crate) left: AtomicU64,
    /// When it was done; 0: it is not.
    pub(crate) finish: AtomicU64,
    /// The work of the process after which it may begin (`engine`).
    pub(crate) after: AtomicU64,
}

/// Most work that a process may have queued on a GPU.
pub(crate) const QUEUE: usize = 256;
/// Nanoseconds of one entry of the history, and the number of entries.
pub(crate) const BUCKET: u64 = 10_000_000;
pub(crate) const BUCKETS: usize = 256;

/// The file that belongs to a state file.
#[must_use]
pub fn path_of(state: &Path) -> PathBuf {
    let mut name = state.as_os_str().to_owned();
    name.push(".cuda");
    PathBuf::from(name)
}

/// Creates the file, empty, atomically.
pub(crate) fn create(state: &Path) -> io::Result<()> {
    // Every CUDA process writes it: it stands in for the kernel's part of the driver.
    let everyone = 0o666;
    replace(&path_of(state), &[], (size_of::<SharedUsage>(), everyone))
}

/// The mapped file; never unmapped, like a driver's memory.
#[derive(Clone, Copy)]
pub(crate) struct Mapping {
    base: NonNull<SharedUsage>,
}

// SAFETY: every field of the mapping is atomic, and it is never unmapped.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `file`, which stays mapped for as long as the process lives. A child made by fork
    /// does not get the mapping when `writable`, nor with it the file locks that it carries.
    pub(crate) fn new(path: &Path, file: &File, writable: bool) -> io::Result<Self> {
        use std::os::fd::AsRawFd as _;
        if file.metadata()?.len() != size_of::<SharedUsage>() as u64 {
            return Err(no_state(path));
        }
        let access = if writable {
            libc::PROT_READ | libc::PROT_WRITE
        } else {
            libc::PROT_READ
        };
        // SAFETY: a new mapping at an address of the kernel's choice touches no other memory; the
        // length is the file's, and such files are replaced by rename, never truncated.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size_of::<SharedUsage>(),
                access,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                file.as_raw_fd(),
                0,
            )
        };
        let mapped = (base != libc::MAP_FAILED)
            .then(|| NonNull::new(base))
            .flatten();
        let Some(base) = mapped else {
            return Err(io::Error::last_os_error());
        };
        if writable {
            // SAFETY: the range is the mapping just made. Should the kernel refuse, children see
            // the parent's numbers, which only weakens the simulation of fork.
            unsafe { libc::madvise(base.as_ptr(), size_of::<SharedUsage>(), libc::MADV_DONTFORK) };
        }
        Ok(Self { base: base.cast() })
    }

    pub(crate) fn get(self) -> &'static SharedUsage {
        // SAFETY: the mapping is as long as `SharedUsage`, page-aligned, never unmapped, and holds
        // atomics only, for which any bytes are a value.
        unsafe { self.base.as_ref() }
    }
}

pub(crate) fn open(path: &Path, writable: bool) -> io::Result<File> {
    let opened = OpenOptions::new().read(true).write(writable).open(path);
    opened.map_err(|error| {
        let text = format!("cannot open {}: {error}", path.display());
        io::Error::new(error.kind(), text)
    })
}

impl SharedUsage {
    /// The slots that were ever claimed, with their numbers.
    pub(crate) fn claimed(&self) -> impl Iterator<Item = (usize, &Slot)> {
        let top = usize::try_from(self.top.load(Relaxed)).unwrap_or(MAX_SLOTS);
        let slots = self.slots[..top.min(MAX_SLOTS)].iter().enumerate();
        slots.filter(|(_, slot)| slot.generation.load(Relaxed) != 0)
    }
}
