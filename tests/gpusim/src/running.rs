//! The CUDA processes of the machine as processes of its cards, beside those that were put there
//! by hand. Fed by `Watcher`; changes only the snapshot that it is given.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use aliquot_gpusim_model::shared::path_of;
use aliquot_gpusim_model::{Member, Watcher, clock, group_of};
use parking_lot::Mutex;

use crate::Holder;
use crate::edit;
use crate::model::{Gpu, Process, ProcessKind};
use crate::state::StateError;

/// A look at what CUDA processes hold and run.
pub(crate) struct Running {
    watcher: Watcher,
    /// Lets the cards' time go on where no process does, if this one may write.
    member: Option<(u32, Member)>,
}

/// A claimed slot is kept until the process ends, so each file is opened once.
static OPEN: Mutex<Vec<(PathBuf, u64, Arc<Running>)>> = Mutex::new(Vec::new());

impl Running {
    /// Opens what belongs to a state file.
    pub(crate) fn open(state: &Path) -> Result<Arc<Self>, StateError> {
        use std::os::unix::fs::MetadataExt as _;
        let file = std::fs::metadata(path_of(state)).map_or(0, |file| file.ino());
        let mut open = OPEN.lock();
        let known = open
            .iter()
            .find(|(path, inode, _)| path == state && *inode == file);
        if let Some((.., running)) = known {
            return Ok(Arc::clone(running));
        }
        let member = Member::join(state).ok();
        let running = Arc::new(Self {
            watcher: Watcher::open(state)?,
            member: member.map(|member| (std::process::id(), member)),
        });
        open.push((state.to_owned(), file, Arc::clone(&running)));
        Ok(running)
    }

    /// This process among those that share the cards; a child made by fork has no slot.
    pub(crate) fn member(&self) -> Option<&Member> {
        let (pid, member) = self.member.as_ref()?;
        (*pid == std::process::id()).then_some(member)
    }

    pub(crate) fn group_peak(&self, card: usize, group: &str) -> Option<u64> {
        self.watcher.group_peak(card, group_of(group))
    }

    pub(crate) fn host_peak(&self, card: usize) -> u64 {
        self.watcher.host_peak(card)
    }

    pub(crate) fn holders(&self, gpu: &Gpu, card: usize) -> Vec<Holder> {
        let now = clock();
        if let Some(member) = self.member() {
            member.settle(card, (now, u64::from(gpu.slice_us) * 1000));
        }
        let period = u64::from(gpu.sample_ms.max(1)) * 1_000_000;
        self.watcher.holders(card, (now, period))
    }
}

/// Adds the holders to a snapshot of their card: those that this reader can see by name, the
/// memory of the others as used by nobody. Several holders of one process are one.
pub(crate) fn add(gpu: &mut Gpu, running: &Running, card: usize) {
    let mut seen: Vec<Process> = Vec::new();
    let mut busy = 0;
    for holder in running.holders(gpu, card) {
        busy += holder.utilisation;
        match holder.pid_here() {
            None => gpu.memory_used = gpu.memory_used.saturating_add(holder.used),
            Some(pid) => {
                let known = seen.iter_mut().find(|one| one.pid == pid);
                if let Some(known) = known {
                    known.memory += holder.used;
                    known.sm = (known.sm + holder.utilisation).min(100);
                } else {
                    seen.push(process(pid, &holder));
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

fn process(pid: u32, holder: &Holder) -> Process {
    let kind = if holder.mps {
        ProcessKind::Mps
    } else {
        ProcessKind::Compute
    };
    let whole = edit::compute_process(pid, 0);
    let (gpu_instance, compute_instance) = holder
        .instance
        .unwrap_or((whole.gpu_instance, whole.compute_instance));
    Process {
        memory: holder.used,
        kind: kind as u32,
        sm: holder.utilisation.min(100),
        gpu_instance,
        compute_instance,
        ..whole
    }
}
