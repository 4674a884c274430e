//! What a context takes of its GPU when kernels are first launched in it.
//!
//! Facts of: CUDA Driver API, Execution Control (`CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES`) and
//! `cuCtxSetLimit`.

use crate::client::*;
use crate::common::{TWO_A100, on_machine, used_mib};

/// MiB of local memory of 800 bytes for each of an A100's 108 × 2048 threads, in whole blocks.
const LOCAL_800: u64 = 170;
/// As above, of 1600 bytes.
const LOCAL_1600: u64 = 338;
const CONTEXT: u64 = 416;

#[test]
fn context_grows_once_at_its_first_launch() {
    const GROWING: &str =
        "gpus: [{model: Tesla T4, set: {contextMib: 300, contextGrowthMib: 200}}]";
    on_machine(GROWING, |machine| {
        let cuda = Cuda::ready();
        let kernel = cuda.kernel("k_us_5");
        assert_eq!(used_mib(machine, "0"), 300);
        let all = cuda.alloc(cuda.info().0 - 100 * MIB).unwrap();
        assert_eq!(cuda.launch(kernel, 0), OUT_OF_MEMORY);
        assert_eq!(cuda.free(all), OK);
        assert_eq!(used_mib(machine, "0"), 300);
        for _ in 0..2 {
            assert_eq!(cuda.launch(kernel, 0), OK);
            assert_eq!(used_mib(machine, "0"), 500);
        }
        ok!(cuda, cuDevicePrimaryCtxRelease_v2(i32: 0));
        ok!(cuda, cuCtxSetCurrent(u64: cuda.primary(0)));
        assert_eq!(used_mib(machine, "0"), 300);
    });
}

#[test]
fn first_launch_reserves_local_memory_of_all_threads() {
    on_machine(TWO_A100, |machine| {
        let cuda = Cuda::ready();
        let [small, middle, large] = ["k_us_5_local_400", "k_us_5_local_800", "k_us_5_local_1600"]
            .map(|name| cuda.kernel(name));
        assert_eq!(used_mib(machine, "0"), CONTEXT);
        for (kernel, local) in [
            (middle, LOCAL_800),
            (small, LOCAL_800),
            (large, LOCAL_1600),
            (middle, LOCAL_1600),
        ] {
            assert_eq!(cuda.launch(kernel, 0), OK);
            assert_eq!(used_mib(machine, "0"), CONTEXT + local);
        }
        ok!(cuda, cuDevicePrimaryCtxRelease_v2(i32: 0));
        ok!(cuda, cuCtxSetCurrent(u64: cuda.primary(0)));
        assert_eq!(used_mib(machine, "0"), CONTEXT);
    });
}

#[test]
fn rejects_launch_whose_local_memory_does_not_fit() {
    on_machine(TWO_A100, |machine| {
        let cuda = Cuda::ready();
        let kernel = cuda.kernel("k_us_5_local_800");
        let all = cuda.alloc(cuda.info().0 - (LOCAL_800 - 2) * MIB).unwrap();
        let before = used_mib(machine, "0");
        assert_eq!(cuda.launch(kernel, 0), OUT_OF_MEMORY);
        assert_eq!(used_mib(machine, "0"), before);
        assert_eq!(cuda.free(all), OK);
        assert_eq!(cuda.launch(kernel, 0), OK);
    });
}

#[test]
fn graph_reserves_local_memory_at_its_launch() {
    on_machine(TWO_A100, |machine| {
        let cuda = Cuda::ready();
        let (stream, kernel) = (cuda.stream(), cuda.kernel("k_us_5_local_800"));
        let (mut graph, mut exec) = (0, 0);
        ok!(cuda, cuStreamBeginCapture_v2(u64: stream, u32: 0));
        assert_eq!(cuda.launch(kernel, stream), OK);
        ok!(cuda, cuStreamEndCapture(u64: stream, *mut u64: &raw mut graph));
        ok!(cuda, cuGraphInstantiateWithFlags(*mut u64: &raw mut exec, u64: graph, u64: 0));
        assert_eq!(used_mib(machine, "0"), CONTEXT);
        ok!(cuda, cuGraphLaunch(u64: exec, u64: stream));
        assert_eq!(used_mib(machine, "0"), CONTEXT + LOCAL_800);
    });
}
