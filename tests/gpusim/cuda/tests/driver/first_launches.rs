//! What a context takes of its GPU when kernels are first launched in it.
//!
//! Facts of: CUDA Driver API, Execution Control (`CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES`) and
//! `cuCtxSetLimit`.

use aliquot_gpusim::SimulatedMachine;

use crate::client::*;
use crate::common::{TWO_A100, on_machine};

/// MiB that the process uses on GPU 0.
fn used(machine: &SimulatedMachine) -> u64 {
    machine.process_usage("0").unwrap()[0].used / MIB
}

/// MiB of local memory of 800 bytes for each of an A100's 108 × 2048 threads, in whole blocks.
const LOCAL_800: u64 = 170;
/// As above, of 1600 bytes.
const LOCAL_1600: u64 = 338;
const CONTEXT: u64 = 416;

#[test]
fn context_grows_once_at_its_first_launch() {
    const GROWING: &str =
        "gpus: [{model: Tesla T4, set: {contextMib: 300, contextGrowthMib: 200}}]";
    let name = "first_launches::context_grows_once_at_its_first_launch";
    on_machine(name, GROWING, |machine| {
        let cuda = Cuda::ready();
        let kernel = cuda.kernel("k_us_5");
        assert_eq!(used(machine), 300);
        let all = cuda.alloc(cuda.info().0 - 100 * MIB).unwrap();
        assert_eq!(cuda.launch(kernel, 0), OUT_OF_MEMORY);
        assert_eq!(cuda.free(all), OK);
        assert_eq!(used(machine), 300);
        for _ in 0..2 {
            assert_eq!(cuda.launch(kernel, 0), OK);
            assert_eq!(used(machine), 500);
        }
        ok!(cuda, cuDevicePrimaryCtxRelease_v2(i32: 0));
        ok!(cuda, cuCtxSetCurrent(u64: cuda.primary(0)));
        assert_eq!(used(machine), 300);
    });
}

#[test]
fn first_launch_reserves_local_memory_of_all_threads() {
    let name = "first_launches::first_launch_reserves_local_memory_of_all_threads";
    on_machine(name, TWO_A100, |machine| {
        let cuda = Cuda::ready();
        let [small, middle, large] = ["k_us_5_local_400", "k_us_5_local_800", "k_us_5_local_1600"]
            .map(|name| cuda.kernel(name));
        assert_eq!(used(machine), CONTEXT);
        for (kernel, local) in [
            (middle, LOCAL_800),
            (small, LOCAL_800),
            (large, LOCAL_1600),
            (middle, LOCAL_1600),
        ] {
            assert_eq!(cuda.launch(kernel, 0), OK);
            assert_eq!(used(machine), CONTEXT + local);
        }
        ok!(cuda, cuDevicePrimaryCtxRelease_v2(i32: 0));
        ok!(cuda, cuCtxSetCurrent(u64: cuda.primary(0)));
        assert_eq!(used(machine), CONTEXT);
    });
}

#[test]
fn rejects_launch_whose_local_memory_does_not_fit() {
    let name = "first_launches::rejects_launch_whose_local_memory_does_not_fit";
    on_machine(name, TWO_A100, |machine| {
        let cuda = Cuda::ready();
        let kernel = cuda.kernel("k_us_5_local_800");
        let all = cuda.alloc(cuda.info().0 - (LOCAL_800 - 2) * MIB).unwrap();
        let before = used(machine);
        assert_eq!(cuda.launch(kernel, 0), OUT_OF_MEMORY);
        assert_eq!(used(machine), before);
        assert_eq!(cuda.free(all), OK);
        assert_eq!(cuda.launch(kernel, 0), OK);
    });
}

#[test]
fn graph_reserves_local_memory_at_its_launch() {
    let name = "first_launches::graph_reserves_local_memory_at_its_launch";
    on_machine(name, TWO_A100, |machine| {
        let cuda = Cuda::ready();
        let (stream, kernel) = (cuda.stream(), cuda.kernel("k_us_5_local_800"));
        let (mut graph, mut exec) = (0, 0);
        ok!(cuda, cuStreamBeginCapture_v2(u64: stream, u32: 0));
        assert_eq!(cuda.launch(kernel, stream), OK);
        ok!(cuda, cuStreamEndCapture(u64: stream, *mut u64: &raw mut graph));
        ok!(cuda, cuGraphInstantiateWithFlags(*mut u64: &raw mut exec, u64: graph, u64: 0));
        assert_eq!(used(machine), CONTEXT);
        ok!(cuda, cuGraphLaunch(u64: exec, u64: stream));
        assert_eq!(used(machine), CONTEXT + LOCAL_800);
    });
}

#[test]
fn functions_and_kernels_report_their_local_memory() {
    const LOCAL_SIZE: u32 = 3;
    let name = "first_launches::functions_and_kernels_report_their_local_memory";
    on_machine(name, TWO_A100, |machine| {
        let cuda = Cuda::ready();
        let mut value = -1;
        for (name, bytes) in [("k_us_5_local_800", 800), ("k_us_5", 0)] {
            let code = call!(cuda, cuFuncGetAttribute(
                *mut i32: &raw mut value, u32: LOCAL_SIZE, u64: cuda.kernel(name),
            ));
            assert_eq!((code, value), (OK, bytes), "{name}");
        }
        let (mut library, mut kernel) = (0, 0);
        ok!(cuda, cuLibraryLoadData(
            *mut u64: &raw mut library, *const i8: c"any".as_ptr(), u64: 0, u64: 0, u32: 0, u64: 0,
            u64: 0, u32: 0,
        ));
        ok!(cuda, cuLibraryGetKernel(
            *mut u64: &raw mut kernel, u64: library, *const i8: c"k_us_5_local_800".as_ptr(),
        ));
        let mut ask = |kernel: u64| {
            call!(cuda, cuKernelGetAttribute(
                *mut i32: &raw mut value, u32: LOCAL_SIZE, u64: kernel, i32: 0,
            ))
        };
        assert_eq!(ask(7), INVALID_HANDLE);
        assert_eq!(ask(kernel), OK);
        assert_eq!(value, 800);
        assert_eq!(cuda.launch(kernel, 0), OK);
        assert_eq!(used(machine), CONTEXT + LOCAL_800);
    });
}
