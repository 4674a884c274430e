//! Capture, the calls that it forbids, and graphs.
//!
//! Facts of: CUDA Driver API, Stream Management (`cuStreamBeginCapture`,
//! `cuThreadExchangeStreamCaptureMode`) and Graph Management.

use crate::client::*;
use crate::common::{TWO_A100, on_machine};

const GLOBAL: u32 = 0;
const THREAD_LOCAL: u32 = 1;
const RELAXED: u32 = 2;

fn begin(cuda: Cuda, stream: u64, mode: u32) -> u32 {
    call!(cuda, cuStreamBeginCapture_v2(u64: stream, u32: mode))
}

fn end(cuda: Cuda, stream: u64) -> Result<u64, u32> {
    let mut graph = 0;
    match call!(cuda, cuStreamEndCapture(u64: stream, *mut u64: &raw mut graph)) {
        OK => Ok(graph),
        code => Err(code),
    }
}

fn status(cuda: Cuda, stream: u64) -> u32 {
    let mut status = 9;
    ok!(cuda, cuStreamIsCapturing(u64: stream, *mut u32: &raw mut status));
    status
}

fn instantiate(cuda: Cuda, graph: u64) -> u64 {
    let mut exec = 0;
    ok!(cuda, cuGraphInstantiateWithFlags(
        *mut u64: &raw mut exec, u64: graph, u64: 0,
    ));
    exec
}

fn launch(cuda: Cuda, exec: u64, stream: u64) -> u32 {
    call!(cuda, cuGraphLaunch(u64: exec, u64: stream))
}

#[test]
fn captured_graph_runs_its_kernels_only_at_launch() {
    on_machine(TWO_A100, |machine| {
        let cuda = Cuda::ready();
        let (stream, side, kernel) = (cuda.stream(), cuda.stream(), cuda.kernel("k_ms_2"));
        let [fork, join] = [cuda.event(), cuda.event()];
        let wait = |stream, event| call!(cuda, cuStreamWaitEvent(u64: stream, u64: event, u32: 0));
        assert_eq!(begin(cuda, stream, GLOBAL), OK);
        assert_eq!(cuda.launch(kernel, stream), OK);
        assert_eq!((cuda.record(fork, stream), wait(side, fork)), (OK, OK));
        assert_eq!(
            (cuda.launch(kernel, side), cuda.launch(kernel, side)),
            (OK, OK)
        );
        assert_eq!((status(cuda, stream), status(cuda, side)), (1, 1));
        assert_eq!((cuda.record(join, side), wait(stream, join)), (OK, OK));
        let graph = end(cuda, stream).unwrap();
        assert_eq!((status(cuda, stream), status(cuda, side)), (0, 0));
        assert_eq!(machine.process_usage("0").unwrap()[0].launches, 0);
        let exec = instantiate(cuda, graph);
        for _ in 0..5 {
            assert_eq!(launch(cuda, exec, stream), OK);
        }
        assert_eq!(cuda.synchronize(), OK);
        let holder = machine.process_usage("0").unwrap()[0];
        assert_eq!((holder.busy, holder.launches), (30_000_000, 5));
    });
}

#[test]
fn unjoined_stream_invalidates_the_capture() {
    on_machine(TWO_A100, |_| {
        let cuda = Cuda::ready();
        let (stream, side, kernel, fork) = (
            cuda.stream(),
            cuda.stream(),
            cuda.kernel("k_us_2"),
            cuda.event(),
        );
        assert_eq!(begin(cuda, stream, GLOBAL), OK);
        assert_eq!(cuda.record(fork, stream), OK);
        ok!(cuda, cuStreamWaitEvent(u64: side, u64: fork, u32: 0));
        assert_eq!(cuda.launch(kernel, side), OK);
        assert_eq!(end(cuda, stream), Err(904));
    });
}

#[test]
fn query_during_capture_invalidates_it_by_mode() {
    on_machine(TWO_A100, |_| {
        let cuda = Cuda::ready();
        let (stream, other, event) = (cuda.stream(), cuda.stream(), cuda.event());
        let kernel = cuda.kernel("k_us_2");
        assert_eq!(cuda.record(event, other), OK);
        let exchange = |mode: u32| {
            let mut mode = mode;
            ok!(cuda, cuThreadExchangeStreamCaptureMode(*mut u32: &raw mut mode));
            mode
        };
        // Mode of the capture, of the polling thread (None: the capturing one), and the outcome.
        for (mode, poller, allowed) in [
            (GLOBAL, None, false),
            (THREAD_LOCAL, None, false),
            (RELAXED, None, true),
            (GLOBAL, Some(GLOBAL), false),
            (GLOBAL, Some(THREAD_LOCAL), true),
            (GLOBAL, Some(RELAXED), true),
            (THREAD_LOCAL, Some(GLOBAL), true),
        ] {
            assert_eq!(begin(cuda, stream, mode), OK);
            let answer = match poller {
                None => cuda.query(event),
                Some(own) => std::thread::scope(|scope| {
                    let poll = || {
                        assert_eq!(exchange(own), GLOBAL);
                        cuda.query(event)
                    };
                    scope.spawn(poll).join().unwrap()
                }),
            };
            let shown = format!("capture {mode}, poll {poller:?}");
            assert_eq!(answer, if allowed { OK } else { 900 }, "{shown}");
            assert_eq!(
                cuda.launch(kernel, stream),
                if allowed { OK } else { 901 },
                "{shown}"
            );
            assert_eq!(status(cuda, stream), if allowed { 1 } else { 2 }, "{shown}");
            assert_eq!(end(cuda, stream).is_ok(), allowed, "{shown}");
        }
        // A query is possible with the mode exchanged.
        assert_eq!(begin(cuda, stream, GLOBAL), OK);
        let before = exchange(RELAXED);
        assert_eq!(cuda.query(event), OK);
        exchange(before);
        assert!(end(cuda, stream).is_ok());
        // The capturing stream itself may never be queried.
        assert_eq!(begin(cuda, stream, RELAXED), OK);
        assert_eq!(call!(cuda, cuStreamQuery(u64: stream)), 900);
        assert_eq!(end(cuda, stream), Err(901));
        assert_eq!(begin(cuda, 0, GLOBAL), 900);
    });
}

#[test]
fn graph_allocations_keep_memory_until_trimmed() {
    on_machine(TWO_A100, |machine| {
        let cuda = Cuda::ready();
        let charged = || machine.process_usage("0").unwrap()[0].used / MIB - 416;
        let stream = cuda.stream();
        let mut pointer = 0;
        assert_eq!(begin(cuda, stream, GLOBAL), OK);
        ok!(cuda, cuMemAllocAsync(
            *mut u64: &raw mut pointer, u64: 100 * MIB, u64: stream,
        ));
        ok!(cuda, cuMemFreeAsync(u64: pointer, u64: stream));
        let graph = end(cuda, stream).unwrap();
        let exec = instantiate(cuda, graph);
        assert_eq!(charged(), 0);
        for _ in 0..3 {
            assert_eq!(launch(cuda, exec, stream), OK);
            assert_eq!(charged(), 100);
        }
        let attribute = |number: u32| {
            let mut value = 0;
            ok!(cuda, cuDeviceGetGraphMemAttribute(
                i32: 0, u32: number, *mut u64: &raw mut value,
            ));
            value / MIB
        };
        assert_eq!([0, 1, 2, 3].map(attribute), [0, 100, 100, 100]);
        ok!(cuda, cuDeviceGraphMemTrim(i32: 0));
        assert_eq!((charged(), attribute(2)), (0, 0));
    });
}
