//! Groups of processes, and the peak of the memory that each group used on a GPU at one moment,
//! dead processes left out. A container is a group by its pid namespace; `GPUSIM_GROUP` names
//! another.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use crate::member::Member;
use crate::mig::hash;
use crate::pids;
use crate::shared::{GpuRecord, Group, Slot};

/// The number of a group by its name.
#[must_use]
pub fn group_of(name: &str) -> u64 {
    hash(name) | 1
}

/// This process's group.
pub(crate) fn own() -> u64 {
    match std::env::var("GPUSIM_GROUP") {
        Ok(name) => group_of(&name),
        Err(_) => pids::own_namespace().max(1),
    }
}

impl Member {
    /// Records what this process's group uses now, if it is a new peak. Needs the GPU's lock.
    pub(crate) fn record_group_peak(&self, gpu_index: usize, record: &GpuRecord) {
        let name = self.shared().slots[self.slot()].group.load(Relaxed);
        let sum = |counts: &dyn Fn(&Slot) -> bool| -> u64 {
            let all = self.shared().claimed().map(|(_, slot)| slot);
            let own = all.filter(|slot| slot.group.load(Relaxed) == name && counts(slot));
            own.map(|slot| slot.counters[gpu_index].used.load(Relaxed))
                .sum()
        };
        let place = |group: &&Group| {
            matches!(group.name.load(Relaxed), 0) || group.name.load(Relaxed) == name
        };
        let Some(group) = record.groups.iter().find(place) else {
            record.groups_overflowed.store(1, Relaxed);
            return;
        };
        group.name.store(name, Relaxed);
        if sum(&|_| true) > group.peak.load(Relaxed) {
            // Dead processes may still be counted: those whose slot is free, and those whose
            // slot was just claimed and not yet cleared.
            self.reap(gpu_index, record);
            group.peak.fetch_max(sum(&is_owners), Relaxed);
        }
    }
}

/// Whether the contents of a slot belong to the process that owns it now.
fn is_owners(slot: &Slot) -> bool {
    let settled = slot.settled.load(Acquire) == slot.generation.load(Acquire);
    let here = slot.namespace.load(Relaxed) == pids::own_namespace();
    settled && !(here && pids::has_ended(slot.pid.load(Relaxed)))
}
