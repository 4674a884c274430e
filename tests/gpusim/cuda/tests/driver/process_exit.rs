//! Processes that share a GPU, and that are killed.

use crate::client::*;
use crate::common::{TWO_A100, on_machine, on_machine_with, role, start, until};

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
fn group_peak_counts_process_after_first_thread_ended() {
    // Its first thread is a zombie then, and the process must still not count as dead.
    on_machine_with(TWO_A100, &[("GPUSIM_GROUP", "pod")], |machine| {
        if role().is_some() {
            // A test is not its process's first thread; it is that of a child.
            // SAFETY: the child uses nothing of its parent's other threads.
            if unsafe { libc::fork() } > 0 {
                loop {
                    std::thread::park();
                }
            }
            // SAFETY: asks the kernel to end this process with its parent.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            Cuda::ready().alloc(2000 * MIB).unwrap();
            std::thread::spawn(|| {
                loop {
                    std::thread::park();
                }
            });
            // SAFETY: ends this thread, the first, and no other: it is a zombie from now on.
            unsafe { libc::syscall(libc::SYS_exit, 0) };
        }
        let cuda = Cuda::ready();
        let _child = start("holder");
        until("its first thread ended", || {
            let holders = machine.process_usage("0").unwrap();
            let holder = holders.iter().find(|one| one.used / MIB == 2416);
            holder.is_some_and(|one| {
                let stat = std::fs::read_to_string(format!("/proc/{}/stat", one.pid));
                stat.is_ok_and(|stat| stat.contains(") Z "))
            })
        });
        cuda.alloc(1000 * MIB).unwrap();
        let peak = machine.group_peak("0", "pod").unwrap() / MIB;
        assert_eq!(peak, 416 + 2416 + 1000);
    });
}

#[test]
fn two_library_copies_appear_as_one_nvml_process() {
    on_machine(TWO_A100, |machine| {
        let cuda = Cuda::ready();
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join("libcuda.so.580");
        std::fs::copy(aliquot_gpusim::place::cuda_library_path().unwrap(), &copy).unwrap();
        let other = Cuda::open_at(&copy);
        ok!(other, cuInit(u32: 0));
        ok!(other, cuCtxSetCurrent(u64: other.primary(0)));
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
