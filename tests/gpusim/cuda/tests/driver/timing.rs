//! Time: kernels take what their names specify, events measure it to the half microsecond, and
//! processes share a GPU in time slices.
//!
//! Facts of: CUDA Driver API, Stream Synchronization Behavior, Event Management and Execution
//! Control.

use crate::client::*;
use crate::common::{TWO_A100, on_machine, role, start, until};

#[test]
fn events_measure_exact_kernel_time() {
    on_machine(
        "timing::events_measure_exact_kernel_time",
        TWO_A100,
        |machine| {
            let cuda = Cuda::ready();
            let (stream, other) = (cuda.stream(), cuda.stream());
            let [start, end, idle] = [cuda.event(), cuda.event(), cuda.event()];
            assert_eq!(cuda.elapsed(start, end), Err(INVALID_HANDLE));
            let (long, short) = (cuda.kernel("k_ms_40"), cuda.kernel("k_us_1500"));
            assert_eq!(cuda.launch(long, stream), OK);
            assert_eq!(cuda.record(start, stream), OK);
            for _ in 0..20 {
                assert_eq!(cuda.launch(short, stream), OK);
            }
            assert_eq!(cuda.record(end, stream), OK);
            assert_eq!((cuda.query(start), cuda.query(end)), (NOT_READY, NOT_READY));
            assert_eq!(cuda.elapsed(start, end), Err(NOT_READY));
            // Another stream has nothing to wait for.
            assert_eq!(cuda.record(idle, other), OK);
            assert_eq!(cuda.query(idle), OK);
            let query = |stream| call!(cuda, cuStreamQuery(u64: stream));
            assert_eq!((query(stream), query(other)), (NOT_READY, OK));
            ok!(cuda, cuStreamWaitEvent(u64: other, u64: end, u32: 0));
            assert_eq!(query(other), NOT_READY);
            ok!(cuda, cuStreamSynchronize(u64: stream));
            assert_eq!(cuda.elapsed(start, end), Ok(30.0));
            assert_eq!((query(stream), query(other)), (OK, OK));
            machine.set("0", &[("clockPpm", "1000")]).unwrap();
            assert_eq!(cuda.elapsed(start, end), Ok(30.03));
            let holder = machine.process_usage("0").unwrap()[0];
            assert_eq!((holder.busy, holder.launches), (70_000_000, 21));
        },
    );
}

#[test]
fn legacy_and_blocking_streams_wait_for_each_other() {
    let name = "timing::legacy_and_blocking_streams_wait_for_each_other";
    on_machine(name, TWO_A100, |_| {
        let cuda = Cuda::ready();
        let mut blocking = 0;
        ok!(cuda, cuStreamCreate(*mut u64: &raw mut blocking, u32: 0));
        let free = cuda.stream();
        let kernel = cuda.kernel("k_ms_100");
        let query = |stream| call!(cuda, cuStreamQuery(u64: stream));
        let check = |launched: u64, expected: [u32; 3]| {
            assert_eq!(cuda.launch(kernel, launched), OK);
            assert_eq!(
                [query(0), query(blocking), query(free)],
                expected,
                "{launched}"
            );
            assert_eq!(cuda.synchronize(), OK);
        };
        check(0, [NOT_READY, NOT_READY, OK]);
        check(blocking, [NOT_READY, NOT_READY, OK]);
        check(free, [OK, OK, NOT_READY]);
    });
}

#[test]
fn full_queue_delays_launches_but_not_event_times() {
    let name = "timing::full_queue_delays_launches_but_not_event_times";
    on_machine(name, TWO_A100, |_| {
        let cuda = Cuda::ready();
        let (stream, kernel) = (cuda.stream(), cuda.kernel("k_us_300"));
        let events: Vec<u64> = (0..=1000).map(|_| cuda.event()).collect();
        assert_eq!(cuda.launch(cuda.kernel("k_ms_300"), stream), OK);
        for event in &events {
            assert_eq!(cuda.record(*event, stream), OK);
            assert_eq!(cuda.launch(kernel, stream), OK);
        }
        assert_eq!(cuda.synchronize(), OK);
        assert_eq!(cuda.elapsed(events[0], events[1]), Ok(0.3));
        let whole = cuda.elapsed(events[0], events[1000]).unwrap();
        assert!((300.0..330.0).contains(&whole), "{whole}");
    });
}

#[test]
fn two_busy_processes_share_a_gpu_equally() {
    const NAME: &str = "timing::two_busy_processes_share_a_gpu_equally";
    on_machine(NAME, TWO_A100, |machine| {
        let cuda = Cuda::ready();
        let (stream, kernel) = (cuda.stream(), cuda.kernel("k_ms_1"));
        if role().is_some() {
            loop {
                assert_eq!(cuda.launch(kernel, stream), OK);
            }
        }
        let busy = |pid: u32| {
            let holders = machine.process_usage("0").unwrap();
            holders
                .iter()
                .find(|one| one.pid == pid)
                .map_or(0, |one| one.busy)
        };
        let mut other = start(NAME, "worker");
        until("the other works", || busy(other.id()) > 50_000_000);
        until("a whole sample of it", || {
            machine.show().unwrap()["gpus"][0]["utilisation"] == 100
        });
        let [before, after] = [cuda.event(), cuda.event()];
        let (theirs, own) = (busy(other.id()), busy(std::process::id()));
        assert_eq!(cuda.record(before, stream), OK);
        for _ in 0..200 {
            assert_eq!(cuda.launch(kernel, stream), OK);
        }
        assert_eq!(cuda.record(after, stream), OK);
        assert_eq!(cuda.synchronize(), OK);
        let took = cuda.elapsed(before, after).unwrap();
        assert!(
            (395.0..500.0).contains(&took),
            "{took} ms for 200 ms of work"
        );
        let (theirs, own) = (busy(other.id()) - theirs, busy(std::process::id()) - own);
        assert_eq!(own, 200_000_000);
        assert!((190_000_000..320_000_000).contains(&theirs), "{theirs}");
        // Only the other is busy now, and that in the last whole sample as well.
        until("the sample shows one process only", || {
            let holders = machine.process_usage("0").unwrap();
            let percent = |pid| {
                holders
                    .iter()
                    .find(|one| one.pid == pid)
                    .map(|one| one.utilisation)
            };
            percent(other.id()) == Some(100) && percent(std::process::id()) == Some(0)
        });
        other.kill();
        until("the GPU is idle", || {
            machine.show().unwrap()["gpus"][0]["utilisation"] == 0
        });
    });
}

#[test]
fn validates_cooperative_launch_size_and_shape() {
    let name = "timing::validates_cooperative_launch_size_and_shape";
    on_machine(name, TWO_A100, |_| {
        let cuda = Cuda::ready();
        let kernel = cuda.kernel("k_us_1");
        let cooperative = |blocks: u32, threads: u32| {
            call!(cuda, cuLaunchCooperativeKernel(
                u64: kernel, u32: blocks, u32: 1, u32: 1, u32: threads, u32: 1, u32: 1, u32: 0,
                u64: 0, u64: 0,
            ))
        };
        for (blocks, threads, code) in [
            (216, 1024, OK),
            (217, 1024, 720),
            (1, 1025, INVALID_VALUE),
            (0, 32, INVALID_VALUE),
        ] {
            assert_eq!(cooperative(blocks, threads), code, "{blocks} x {threads}");
        }
    });
}

#[test]
fn kernel_migrates_managed_memory_to_the_gpu() {
    let name = "timing::kernel_migrates_managed_memory_to_the_gpu";
    on_machine(name, TWO_A100, |machine| {
        let cuda = Cuda::ready();
        let (mut pointer, mut bytes) = (0_u64, 1200 * MIB);
        ok!(cuda, cuMemAllocManaged(*mut u64: &raw mut pointer, u64: bytes, u32: 1));
        let arguments: [*mut u64; 2] = [&raw mut pointer, &raw mut bytes];
        ok!(cuda, cuLaunchKernel(
            u64: cuda.kernel("k_us_10_touch"), u32: 1, u32: 1, u32: 1, u32: 32, u32: 1, u32: 1,
            u32: 0, u64: 0, *const [*mut u64; 2]: &raw const arguments, u64: 0,
        ));
        assert_eq!(cuda.synchronize(), OK);
        let holder = machine.process_usage("0").unwrap()[0];
        assert_eq!(holder.used / MIB, 1616);
        assert!(
            holder.busy > 100_000_000,
            "the way over PCI Express takes time: {}",
            holder.busy
        );
    });
}
