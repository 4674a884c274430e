//! What the limiter counts for each process of a container, from the counters file before and after
//! the driver was read. The file belongs to the tenant: whatever it says, the driver's sizes are only
//! divided into a counted and an uncounted part.

use aliquot_region::host::{CountersSnapshot, ProcessUsage};

/// A process with a process slot, as the kernel and the driver report it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeasuredProcess {
    /// Its pid in its own pid namespace.
    pub container_pid: Option<u32>,
    /// Bytes that it uses; `None` where the driver does not report them.
    pub bytes: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CountedMemory {
    pub bytes: u64,
    /// Of these, managed memory, which the driver may leave out of what it reports.
    pub managed: u64,
    /// Of these, memory of other processes, which the driver may report of those only.
    pub imported: u64,
    /// Requests that the limiter refused; the number may wrap.
    pub refused: u32,
}

/// What the limiter counts for each of these processes on a device. A process has the slot with its
/// pid; if several processes or slots have that pid, or none, what is in the other slots covers what
/// they use beyond `tolerance`, in order.
pub fn counted_memory(
    processes: &[MeasuredProcess],
    (before, after): (&CountersSnapshot, &CountersSnapshot),
    device: usize,
    tolerance: u64,
) -> Vec<CountedMemory> {
    let slots = |pid: u32| {
        let all = after.processes.iter();
        all.filter(move |slot| slot.pid == Some(pid))
    };
    let is_unique = |pid: u32| {
        let of_pid = |one: &&MeasuredProcess| one.container_pid == Some(pid);
        processes.iter().filter(of_pid).count() == 1 && slots(pid).count() == 1
    };
    let of_slot = |slot: &ProcessUsage| {
        let same = |one: &&ProcessUsage| (one.slot, one.pid) == (slot.slot, slot.pid);
        let earlier = before.processes.iter().find(same);
        let earlier = earlier.and_then(|one| one.used.get(device)).copied();
        let bytes = slot.used.get(device).copied().unwrap_or(0);
        CountedMemory {
            bytes: bytes.max(earlier.unwrap_or(0)),
            managed: slot.managed.get(device).copied().unwrap_or(0),
            imported: slot.imported.get(device).copied().unwrap_or(0),
            refused: slot.refused.get(device).copied().unwrap_or(0),
        }
    };
    let others = after.processes.iter();
    let others = others.filter(|slot| !slot.pid.is_some_and(is_unique));
    let mut rest = others.fold(0_u64, |sum, slot| sum.saturating_add(of_slot(slot).bytes));
    let counted = processes.iter().map(|process| {
        let pid = process.container_pid.filter(|pid| is_unique(*pid));
        let own = pid.and_then(|pid| slots(pid).next());
        let of_others = || {
            let needed = process.bytes.unwrap_or(0).saturating_sub(tolerance);
            let bytes = needed.min(rest);
            rest -= bytes;
            CountedMemory {
                bytes,
                ..CountedMemory::default()
            }
        };
        own.map_or_else(of_others, of_slot)
    });
    counted.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(slots: &[(Option<u32>, u64)]) -> CountersSnapshot {
        let usage = |(slot, (pid, used)): (usize, &(Option<u32>, u64))| ProcessUsage {
            slot,
            pid: *pid,
            used: vec![7, *used],
            contexts: vec![0; 2],
            managed: vec![0, used / 2],
            imported: vec![0, used / 3],
            refused: vec![0, 3],
        };
        CountersSnapshot {
            processes: slots.iter().enumerate().map(usage).collect(),
            ..CountersSnapshot::default()
        }
    }

    const fn measured(container_pid: Option<u32>, bytes: Option<u64>) -> MeasuredProcess {
        MeasuredProcess {
            container_pid,
            bytes,
        }
    }

    /// The counted bytes of processes with these pids and sizes on the second device.
    fn counted(processes: &[(Option<u32>, u64)], slots: &[(Option<u32>, u64)]) -> Vec<u64> {
        let all = processes.iter();
        let measured: Vec<_> = all
            .map(|(pid, bytes)| measured(*pid, Some(*bytes)))
            .collect();
        let slots = snapshot(slots);
        let counted = counted_memory(&measured, (&slots, &slots), 1, 10);
        counted.iter().map(|one| one.bytes).collect()
    }

    #[test]
    fn matches_processes_with_slots_by_pid() {
        let processes = [(Some(1), 50), (Some(2), 60)];
        let found = counted(&processes, &[(Some(2), 40), (Some(1), 30)]);
        assert_eq!(found, [30, 40]);
        let found = counted(&processes, &[(Some(3), 90), (Some(1), 30)]);
        assert_eq!(found, [30, 50]);
        assert_eq!(counted(&processes, &[]), [0, 0]);
        let (slots, process) = (snapshot(&[(Some(1), 30)]), measured(Some(1), None));
        let found = counted_memory(&[process], (&slots, &slots), 1, 10);
        let expected = CountedMemory {
            bytes: 30,
            managed: 15,
            imported: 10,
            refused: 3,
        };
        assert_eq!(found, [expected]);
    }

    #[test]
    fn divides_slots_among_processes_with_same_pid() {
        // Two processes are the first of their pid namespaces; the last two share the last slot.
        let processes = [(Some(1), 50), (Some(1), 60), (Some(7), 20), (None, 30)];
        let slots = [(Some(1), 60), (Some(1), 30), (None, 10)];
        assert_eq!(counted(&processes, &slots), [40, 50, 10, 0]);
    }

    #[test]
    fn takes_larger_count_around_reading_of_driver() {
        let (less, more) = (snapshot(&[(Some(1), 30)]), snapshot(&[(Some(1), 50)]));
        let other = snapshot(&[(Some(2), 90)]);
        let process = measured(Some(1), Some(50));
        let bytes = |before: &CountersSnapshot, after: &CountersSnapshot| {
            counted_memory(&[process], (before, after), 1, 10)[0].bytes
        };
        assert_eq!((bytes(&less, &more), bytes(&more, &less)), (50, 50));
        assert_eq!(bytes(&other, &less), 30, "the slot was another's");
    }
}
