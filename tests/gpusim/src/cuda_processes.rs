//! Adds the machine's CUDA processes to the processes of its GPUs, beside those added by hand.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aliquot_gpusim_model::engine;
use aliquot_gpusim_model::shared::path_of;
use aliquot_gpusim_model::{Member, UsageReader, clock, group_of};
use parking_lot::Mutex;

use crate::ProcessUsage;
use crate::edit;
use crate::model::{Gpu, Process, ProcessKind};

/// Nanoseconds of a utilisation sample, and how many of them a driver keeps.
const SAMPLE: u64 = 170_000_000;
const SAMPLES: u64 = 14;

/// What CUDA processes use and run.
pub(crate) struct CudaProcesses {
    watcher: UsageReader,
    /// Advances the GPUs' time while no other process does, if this one may write.
    member: Option<(u32, Member)>,
}

/// A claimed slot lives until the process exits, so each file is opened once.
static OPEN: Mutex<Vec<(PathBuf, u64, Arc<CudaProcesses>)>> = Mutex::new(Vec::new());

impl CudaProcesses {
    /// Opens the usage of a state file's machine.
    pub(crate) fn open(state: &Path) -> io::Result<Arc<Self>> {
        use std::os::unix::fs::MetadataExt as _;
        let file = std::fs::metadata(path_of(state)).map_or(0, |file| file.ino());
        let mut open = OPEN.lock();
        let known = open
            .iter()
            .find(|(path, inode, _)| path == state && *inode == file);
        if let Some((.., processes)) = known {
            return Ok(Arc::clone(processes));
        }
        let member = Member::join(state).ok();
        let processes = Arc::new(Self {
            watcher: UsageReader::open(state)?,
            member: member.map(|member| (std::process::id(), member)),
        });
        open.push((state.to_owned(), file, Arc::clone(&processes)));
        Ok(processes)
    }

    /// This process among those that share the GPUs; a child made by fork has no slot.
    pub(crate) fn member(&self) -> Option<&Member> {
        let (pid, member) = self.member.as_ref()?;
        (*pid == std::process::id()).then_some(member)
    }

    pub(crate) fn group_peak(&self, gpu_index: usize, group: &str) -> Option<u64> {
        self.watcher.group_peak(gpu_index, group_of(group))
    }

    pub(crate) fn host_peak(&self, gpu_index: usize) -> u64 {
        self.watcher.host_peak(gpu_index)
    }

    /// Their utilisation is the mean of the samples that ended in the last `period`, or the newest.
    pub(crate) fn process_usage(
        &self,
        gpu: &Gpu,
        gpu_index: usize,
        period: Duration,
    ) -> Vec<ProcessUsage> {
        let now = clock();
        if let Some(member) = self.member() {
            member.settle(gpu_index, engine::moment(gpu));
        }
        let period = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX);
        let newest = now / SAMPLE;
        let samples = (newest - now.saturating_sub(period) / SAMPLE).clamp(1, SAMPLES);
        let window = (newest * SAMPLE, samples * SAMPLE);
        self.watcher.process_usage(gpu_index, window)
    }
}

/// Adds the processes to a snapshot of their GPU: those that this reader can see with their pid,
/// the memory of the others without a process. Several entries of one process are merged. Their
/// utilisation is that of the last `period`.
pub(crate) fn add(gpu: &mut Gpu, processes: &CudaProcesses, gpu_index: usize, period: Duration) {
    let mut seen: Vec<Process> = Vec::new();
    let mut busy = 0;
    let orphaned = processes.watcher.orphaned(gpu_index);
    gpu.memory_used = gpu.memory_used.saturating_add(orphaned);
    for usage in processes.process_usage(gpu, gpu_index, period) {
        busy += usage.utilisation;
        match usage.pid_here() {
            None => gpu.memory_used = gpu.memory_used.saturating_add(usage.used),
            Some(pid) => {
                let known = seen.iter_mut().find(|one| one.pid == pid);
                if let Some(known) = known {
                    known.memory += usage.used;
                    known.managed += usage.managed;
                    known.imported += usage.imported;
                    known.sm = (known.sm + usage.utilisation).min(100);
                } else {
                    seen.push(process(pid, &usage));
                }
            }
        }
    }
    gpu.utilisation = gpu.utilisation.max(busy.min(100));
    for process in seen {
        let memory = process.memory;
        if edit::add_process(gpu, process).is_err() {
            gpu.memory_used = gpu.memory_used.saturating_add(memory);
        }
    }
}

fn process(pid: u32, usage: &ProcessUsage) -> Process {
    let kind = if usage.mps {
        ProcessKind::Mps
    } else {
        ProcessKind::Compute
    };
    let whole = edit::compute_process(pid, 0);
    let (gpu_instance, compute_instance) = usage
        .instance
        .unwrap_or((whole.gpu_instance, whole.compute_instance));
    Process {
        memory: usage.used,
        managed: usage.managed,
        imported: usage.imported,
        kind: kind as u32,
        sm: usage.utilisation.min(100),
        gpu_instance,
        compute_instance,
        ..whole
    }
}
