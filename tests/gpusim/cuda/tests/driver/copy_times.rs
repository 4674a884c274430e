//! GPU time of fills and copies, by the setting that is off by default.

use crate::client::*;
use crate::common::{TWO_A100, on_machine};

const BYTES: usize = 64 << 20;
/// Nanoseconds of 64 MiB at 128 GiB a second.
const TIME: u64 = 488_281;

#[test]
fn fills_and_copies_within_gpu_take_its_time() {
    let name = "copy_times::fills_and_copies_within_gpu_take_its_time";
    on_machine(name, TWO_A100, |machine| {
        let cuda = Cuda::ready();
        let [one, other] = [cuda.alloc(1 << 30).unwrap(), cuda.alloc(1 << 30).unwrap()];
        let (stream, host) = (cuda.stream(), vec![0_u8; BYTES]);
        let host = host.as_ptr().expose_provenance() as u64;
        let busy = || machine.process_usage("0").unwrap()[0].busy;
        for (rate, each) in [("0", 0), ("128", TIME)] {
            machine.set("0", &[("copyGibps", rate)]).unwrap();
            let took = |call: &dyn Fn() -> u32| {
                let before = busy();
                assert_eq!(call(), OK);
                assert_eq!(cuda.synchronize(), OK);
                busy() - before
            };
            let within: [&dyn Fn() -> u32; 6] = [
                &|| call!(cuda, cuMemsetD8_v2(u64: one, u8: 0, usize: BYTES)),
                &|| call!(cuda, cuMemsetD32Async(u64: one, u32: 0, usize: BYTES / 4, u64: stream)),
                &|| call!(cuda, cuMemcpyDtoD_v2(u64: one, u64: other, usize: BYTES)),
                &|| {
                    call!(cuda, cuMemcpyDtoDAsync_v2(
                        u64: one, u64: other, usize: BYTES, u64: stream,
                    ))
                },
                &|| call!(cuda, cuMemcpy(u64: one, u64: other, usize: BYTES)),
                &|| call!(cuda, cuMemcpyAsync(u64: one, u64: other, usize: BYTES, u64: stream)),
            ];
            for (i, call) in within.into_iter().enumerate() {
                assert_eq!(took(call), each, "call {i} at {rate}");
            }
            let from_host = || call!(cuda, cuMemcpyHtoD_v2(u64: one, u64: host, usize: BYTES));
            assert_eq!(took(&from_host), 0, "at {rate}");
        }
    });
}
