//! The CUDA processes of the machine as processes of its cards, beside those that were put there
//! by hand. Fed by `Watcher`; changes only the snapshot that it is given.

use crate::Holder;
use crate::edit;
use crate::model::{Gpu, Process, ProcessKind};

/// Adds the holders to a snapshot of their card: those that this reader can see by name, the
/// memory of the others as used by nobody. Several holders of one process are one.
pub(crate) fn add(gpu: &mut Gpu, holders: &[Holder]) {
    let mut seen: Vec<(u32, u64)> = Vec::new();
    for holder in holders {
        match holder.pid_here() {
            None => gpu.memory_used = gpu.memory_used.saturating_add(holder.used),
            Some(pid) => match seen.iter_mut().find(|(known, _)| *known == pid) {
                Some((_, used)) => *used += holder.used,
                None => seen.push((pid, holder.used)),
            },
        }
    }
    for (pid, memory) in seen {
        let process = Process {
            memory,
            pid,
            kind: ProcessKind::Compute as u32,
            sm: 0,
            bandwidth: 0,
        };
        if edit::add_process(gpu, process).is_err() {
            gpu.memory_used = gpu.memory_used.saturating_add(memory);
        }
    }
}
