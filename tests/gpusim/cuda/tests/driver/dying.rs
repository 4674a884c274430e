//! Processes that share a card, and that die without a word.

use crate::client::*;
use crate::common::{TWO_A100, on_machine, role, start, until};

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
