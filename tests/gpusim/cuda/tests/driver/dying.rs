//! Processes that share a card, and that die without a word.

use crate::client::*;
use crate::common::{TWO_A100, on_machine, on_machine_with, role, start, until};

#[test]
fn what_a_killed_process_held_is_free_at_once() {
    const NAME: &str = "dying::what_a_killed_process_held_is_free_at_once";
    on_machine(NAME, TWO_A100, |machine| {
        if role().is_some() {
            let cuda = Cuda::ready();
            cuda.alloc(10_000 * MIB).unwrap();
            // SAFETY: closes descriptors of this process, which holds none that it still needs.
            unsafe { libc::close_range(3, u32::MAX, 0) };
            loop {
                std::thread::park();
            }
        }
        let mut children: Vec<_> = (0..4).map(|_| start(NAME, "holder")).collect();
        let holders = || machine.holders("0").unwrap();
        let all_hold = |count: usize| {
            let full = holders()
                .iter()
                .filter(|one| one.used == 10_416 * MIB)
                .count();
            full == count
        };
        until("four processes hold 10416 MiB each", || all_hold(4));
        let cuda = Cuda::ready();
        let total = cuda.info().1;
        assert_eq!(cuda.info().0, total - (4 * 10_416 + 416) * MIB);
        for left in (0..4).rev() {
            let mut child = children.pop().unwrap();
            let pid = child.id();
            assert!(holders().iter().any(|one| one.pid_here() == Some(pid)));
            child.kill();
            assert!(holders().iter().all(|one| one.pid != pid));
            assert_eq!(cuda.info().0, total - (left * 10_416 + 416) * MIB);
        }
        // All that they held can be had.
        cuda.alloc(cuda.info().0).unwrap();
    });
}

#[test]
fn a_card_is_never_overbooked_and_nothing_is_lost_when_takers_are_killed() {
    const NAME: &str =
        "dying::a_card_is_never_overbooked_and_nothing_is_lost_when_takers_are_killed";
    on_machine(NAME, TWO_A100, |machine| {
        if role().is_some() {
            let cuda = Cuda::ready();
            loop {
                let held: Vec<u64> = (0..45).map_while(|_| cuda.alloc(500 * MIB).ok()).collect();
                for pointer in held {
                    assert_eq!(cuda.free(pointer), OK);
                }
            }
        }
        let capacity = (81_920 - 634) * MIB;
        for _ in 0..12 {
            let mut children: Vec<_> = (0..4).map(|_| start(NAME, "taker")).collect();
            until("all take", || {
                let holders = machine.holders("0").unwrap();
                let used: u64 = holders.iter().map(|one| one.used).sum();
                assert!(used <= capacity, "{used} of {capacity}");
                holders.iter().filter(|one| one.used > 600 * MIB).count() >= 2
            });
            for child in &mut children {
                child.kill();
            }
        }
        let cuda = Cuda::ready();
        assert_eq!(cuda.info().0, capacity - 416 * MIB);
        assert_eq!(machine.holders("0").unwrap().len(), 1);
    });
}

#[test]
fn a_child_made_by_fork_has_no_driver_and_takes_nothing_along() {
    let name = "dying::a_child_made_by_fork_has_no_driver_and_takes_nothing_along";
    on_machine(name, TWO_A100, |machine| {
        let cuda = Cuda::ready();
        let mut count = 0;
        let init = cuda.symbol("cuInit");
        let get = cuda.symbol("cuDeviceGetCount");
        // SAFETY: the child calls two functions that take no lock here, and leaves.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: the signatures of the driver's documentation.
            let codes = unsafe {
                let init: extern "C" fn(u32) -> u32 = std::mem::transmute(init);
                let get: extern "C" fn(*mut i32) -> u32 = std::mem::transmute(get);
                (init(0), get(&raw mut count))
            };
            let good = codes == (NOT_INITIALIZED, NOT_INITIALIZED);
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(i32::from(!good)) };
        }
        let mut status = -1;
        // SAFETY: waits for the child just made.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
        assert_eq!(machine.holders("0").unwrap().len(), 1);
    });
}

#[test]
fn a_group_s_peak_counts_its_living_processes_together() {
    const NAME: &str = "dying::a_group_s_peak_counts_its_living_processes_together";
    on_machine_with(NAME, TWO_A100, &[("GPUSIM_GROUP", "pod")], |machine| {
        let cuda = Cuda::ready();
        if role().is_some() {
            cuda.alloc(2000 * MIB).unwrap();
            loop {
                std::thread::park();
            }
        }
        let peak = || machine.group_peak("0", "pod").unwrap() / MIB;
        assert_eq!(peak(), 416);
        for _ in 0..3 {
            let mut child = start(NAME, "holder");
            until("it holds", || {
                machine
                    .holders("0")
                    .unwrap()
                    .iter()
                    .any(|one| one.used / MIB == 2416)
            });
            child.kill();
        }
        assert_eq!(peak(), 2832, "never two of them at once");
        cuda.alloc(3000 * MIB).unwrap();
        assert_eq!(
            (peak(), machine.group_peak("0", "other").unwrap()),
            (3416, 0)
        );
    });
}

#[test]
fn two_copies_of_the_library_in_one_process_are_one_process_to_nvml() {
    let name = "dying::two_copies_of_the_library_in_one_process_are_one_process_to_nvml";
    on_machine(name, TWO_A100, |machine| {
        let cuda = Cuda::ready();
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join("libcuda.so.580");
        std::fs::copy(aliquot_gpusim::place::cuda_library_path().unwrap(), &copy).unwrap();
        let other = Cuda::open_at(&copy);
        assert_eq!(call!(other, cuInit(u32), 0), OK);
        assert_eq!(call!(other, cuCtxSetCurrent(u64), other.primary(0)), OK);
        let pointer = other.alloc(100 * MIB).unwrap();
        assert_eq!(cuda.free(pointer), INVALID_VALUE);
        let shown = machine.show().unwrap();
        let processes = shown["gpus"][0]["processes"].as_array().unwrap();
        assert_eq!(
            (processes.len(), &processes[0]["memory"]),
            (1, &serde_json::json!(932))
        );
    });
}
