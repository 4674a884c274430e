//! Time as on a real GPU, by the settings that are off by default: events are late, and launches
//! take CPU time. And what a killed process leaves behind.

use std::time::{Duration, Instant};

use aliquot_gpusim::SimulatedMachine;

use crate::client::*;
use crate::common::{TWO_A100, on_machine, role, start, until};

/// Nanoseconds that the work of this process, the only one, ran on GPU 0.
fn busy(machine: &SimulatedMachine) -> u64 {
    machine.process_usage("0").unwrap()[0].busy
}

#[test]
fn event_is_ready_some_time_after_it_is_recorded() {
    const LATE: Duration = Duration::from_millis(30);
    let yaml = "gpus: [{model: Tesla T4, set: {markLatencyUs: 30000}}]";
    on_machine(yaml, |machine| {
        let cuda = Cuda::ready();
        let (stream, kernel) = (cuda.stream(), cuda.kernel("k_ms_500"));
        let [start, end, alone] = [cuda.event(), cuda.event(), cuda.event()];
        let recorded = Instant::now();
        assert_eq!(cuda.record(start, stream), OK);
        assert_eq!(cuda.launch(kernel, stream), OK);
        let gap = recorded.elapsed();
        assert_eq!(cuda.record(end, stream), OK);
        until("the first event is ready", || cuda.query(start) == OK);
        assert!(recorded.elapsed() >= LATE);
        assert_eq!(cuda.query(end), NOT_READY);
        assert_eq!(cuda.elapsed(start, end), Err(NOT_READY));
        ok!(cuda, cuEventSynchronize(u64: end));
        assert!(recorded.elapsed() >= Duration::from_millis(500) + LATE);
        // The kernel did not wait for the event: between them is what the host took.
        let took = cuda.elapsed(start, end).unwrap();
        let most = 500.0 + gap.as_secs_f32() * 1000.0 + 0.01;
        assert!((500.0..=most).contains(&took), "{took} ms, not {most}");
        // A stream is idle when its events are ready.
        let query = || call!(cuda, cuStreamQuery(u64: stream));
        let recorded = Instant::now();
        assert_eq!((query(), cuda.record(alone, stream)), (OK, OK));
        until("the stream is idle", || query() == OK);
        assert!(recorded.elapsed() >= LATE);
        let recorded = Instant::now();
        assert_eq!(cuda.record(alone, stream), OK);
        ok!(cuda, cuStreamSynchronize(u64: stream));
        assert!(recorded.elapsed() >= LATE);
        machine.set("0", &[("markLatencyUs", "0")]).unwrap();
        assert_eq!(cuda.record(alone, stream), OK);
        assert_eq!((cuda.query(alone), query()), (OK, OK));
        assert_eq!(busy(machine), 500_000_000);
    });
}

#[test]
fn calls_that_launch_take_cpu_time() {
    let yaml = "gpus: [{model: Tesla T4, set: {launchUs: 100000}}]";
    on_machine(yaml, |machine| {
        let cuda = Cuda::ready();
        let (stream, kernel) = (cuda.stream(), cuda.kernel("k_us_1"));
        let memory = cuda.alloc(MIB).unwrap();
        let run = || {
            let start = Instant::now();
            assert_eq!(cuda.launch(kernel, stream), OK);
            let fill = call!(cuda, cuMemsetD8_v2(u64: memory, u8: 1, u64: 64));
            let copy = call!(cuda, cuMemcpyDtoDAsync_v2(
                u64: memory, u64: memory + 4096, u64: 64, u64: stream,
            ));
            assert_eq!((fill, copy), (OK, OK));
            start.elapsed()
        };
        assert!(run() >= Duration::from_millis(300));
        machine.set("0", &[("launchUs", "0")]).unwrap();
        assert!(run() < Duration::from_millis(300));
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
