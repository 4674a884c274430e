//! Time: kernels take what their names specify, and events measure it to the half microsecond.
//!
//! Facts of: CUDA Driver API, Stream Synchronization Behavior, Event Management and Execution
//! Control.

use crate::client::*;
use crate::common::{TWO_A100, on_machine};

#[test]
fn events_measure_exact_kernel_time() {
    on_machine(TWO_A100, |machine| {
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
        assert_eq!(machine.process_usage("0").unwrap()[0].busy, 70_000_000);
    });
}
