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
