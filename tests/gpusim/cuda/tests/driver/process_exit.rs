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

#[test]
fn work_of_a_killed_process_runs_no_more() {
    on_machine(TWO_A100, |machine| {
        let cuda = Cuda::ready();
        if role().is_some() {
            let (stream, kernel) = (cuda.stream(), cuda.kernel("k_ms_10"));
            loop {
                assert_eq!(cuda.launch(kernel, stream), OK);
            }
        }
        let mut other = start("worker");
        until("its queue is full", || {
            let holders = machine.process_usage("0").unwrap();
            let found = holders.iter().find(|one| one.pid == other.id());
            found.is_some_and(|one| one.launches > 256)
        });
        other.kill();
        // More than two seconds of work are left in its queue.
        let (stream, kernel) = (cuda.stream(), cuda.kernel("k_ms_100"));
        let [before, after] = [cuda.event(), cuda.event()];
        assert_eq!(cuda.record(before, stream), OK);
        assert_eq!(cuda.launch(kernel, stream), OK);
        assert_eq!(cuda.record(after, stream), OK);
        assert_eq!(cuda.synchronize(), OK);
        let took = cuda.elapsed(before, after).unwrap();
        assert!((100.0..125.0).contains(&took), "{took} ms");
    });
}
