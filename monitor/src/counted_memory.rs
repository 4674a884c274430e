//! What the limiter counts for each process of a container, from the counters file before and after
//! the driver was read. The file belongs to the tenant: whatever it says, the driver's sizes are only
//! divided into a counted and an uncounted part.

use aliquot_region::host::{CountersSnapshot, ProcessUsage, SlotUsage};

use crate::node_sample::ProcessSample;

/// What the limiter counts for each of these processes on a device. A process has the slot with its
/// pid; if several processes or slots have that pid, or none, what is in the other slots covers what
/// they use beyond `tolerance`, in order.
pub fn counted_memory(
    processes: &[&ProcessSample],
    (before, after): (&CountersSnapshot, &CountersSnapshot),
    device: usize,
    tolerance: u64,
) -> Vec<SlotUsage> {
    let slots = |pid: u32| {
        let all = after.processes.iter();
        all.filter(move |slot| slot.pid == Some(pid))
    };
    let is_unique = |pid: u32| {
        let of_pid = |one: &&&ProcessSample| one.process.container_pid == Some(pid);
        processes.iter().filter(of_pid).count() == 1 && slots(pid).count() == 1
    };
    let of_slot = |slot: &ProcessUsage| {
        let same = |one: &&ProcessUsage| (one.slot, one.pid) == (slot.slot, slot.pid);
        let then = before.processes.iter().find(same);
        let earlier = then.map_or(0, |one| one.device(device).used);
        let found = slot.device(device);
        SlotUsage {
            used: found.used.max(earlier),
            ..found
        }
    };
    let all = after.processes.iter();
    let others = all.filter(|slot| !slot.pid.is_some_and(is_unique));
    let mut rest = others.fold(0_u64, |sum, slot| sum.saturating_add(of_slot(slot).used));
    let counted = processes.iter().map(|one| {
        let pid = one.process.container_pid.filter(|pid| is_unique(*pid));
        let own = pid.and_then(|pid| slots(pid).next());
        let of_others = || {
            let needed = one.bytes.unwrap_or(0).saturating_sub(tolerance);
            let used = needed.min(rest);
            rest -= used;
            SlotUsage {
                used,
                ..SlotUsage::default()
            }
        };
        own.map_or_else(of_others, of_slot)
    });
    counted.collect()
}

#[cfg(test)]
mod tests {
    use aliquot_node_state::processes::ProcessStatus;

    use super::*;
    use crate::testing::{process, process_sample};

    fn snapshot(slots: &[(Option<u32>, u64)]) -> CountersSnapshot {
        let usage = |(slot, (pid, used)): (usize, &(Option<u32>, u64))| {
            let used = SlotUsage {
                used: *used,
                ..SlotUsage::default()
            };
            ProcessUsage {
                slot,
                pid: *pid,
                devices: vec![SlotUsage::default(), used],
            }
        };
        CountersSnapshot {
            processes: slots.iter().enumerate().map(usage).collect(),
            ..CountersSnapshot::default()
        }
    }

    fn measured(container_pid: Option<u32>, bytes: u64) -> ProcessSample {
        let process = ProcessStatus {
            container_pid,
            ..process(1, None, "")
        };
        process_sample("GPU-a", process, bytes)
    }

    #[test]
    fn divides_slots_among_processes_with_same_pid() {
        // Two processes are the first of their pid namespaces; the last two share the last slot.
        let processes = [(Some(1), 50), (Some(1), 60), (Some(7), 20), (None, 30)];
        let processes = processes.map(|(pid, bytes)| measured(pid, bytes));
        let slots = snapshot(&[(Some(1), 60), (Some(1), 30), (None, 10)]);
        let counted = counted_memory(&processes.each_ref(), (&slots, &slots), 1, 10);
        let used: Vec<u64> = counted.iter().map(|one| one.used).collect();
        assert_eq!(used, [40, 50, 10, 0]);
    }

    #[test]
    fn takes_larger_count_around_reading_of_driver() {
        let (less, more) = (snapshot(&[(Some(1), 30)]), snapshot(&[(Some(1), 50)]));
        let other = snapshot(&[(Some(2), 90)]);
        let process = measured(Some(1), 50);
        let bytes = |before: &CountersSnapshot, after: &CountersSnapshot| {
            counted_memory(&[&process], (before, after), 1, 10)[0].used
        };
        assert_eq!((bytes(&less, &more), bytes(&more, &less)), (50, 50));
        assert_eq!(bytes(&other, &less), 30, "the slot was another's");
    }
}
