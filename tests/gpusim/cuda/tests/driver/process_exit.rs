//! Processes that share a GPU, and that are killed.

use crate::client::*;
use crate::common::{TWO_A100, on_machine, role, start, until};

#[test]
fn never_overcommits_gpu_when_processes_are_killed() {
    on_machine(TWO_A100, |machine| {
        if role().is_some() {
            let cuda = Cuda::ready();
            loop {
                let pointers: Vec<u64> =
                    (0..45).map_while(|_| cuda.alloc(500 * MIB).ok()).collect();
                for pointer in pointers {
                    assert_eq!(cuda.free(pointer), OK);
                }
            }
        }
        let capacity = (81_920 - 634) * MIB;
        for _ in 0..12 {
            let mut children: Vec<_> = (0..4).map(|_| start("taker")).collect();
            until("all take", || {
                let holders = machine.process_usage("0").unwrap();
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
        assert_eq!(machine.process_usage("0").unwrap().len(), 1);
    });
}

#[test]
fn forked_child_has_no_driver_and_frees_nothing() {
    on_machine(TWO_A100, |machine| {
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
        assert_eq!(machine.process_usage("0").unwrap().len(), 1);
    });
}
