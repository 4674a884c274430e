//! Every name that a driver exports is there, the old ones answer as their new forms do, and what
//! is not simulated says so.
//!
//! Facts of: the names of real drivers in `limiter/names`, and the CUDA Driver API.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use aliquot_gpusim::{SimulatedMachine, place};

use crate::client::*;
use crate::common::{TWO_A100, on_machine, until};

/// What a driver exports, by library.
const CUDA: &str = include_str!("../../../../../limiter/names/cuda-13.5.txt");
const NVML: &str = include_str!("../../../../../limiter/names/nvml-13.5.txt");

fn missing(library: Cuda, list: &str) -> Vec<&str> {
    let names = list.lines().filter(|line| !line.starts_with('#'));
    names.filter(|name| library.find(name).is_null()).collect()
}

#[test]
fn exports_every_name_of_a_driver() {
    let nvml = Cuda::open_at(&place::library_path().unwrap());
    assert_eq!(missing(Cuda::open(), CUDA), [] as [&str; 0]);
    assert_eq!(missing(nvml, NVML), [] as [&str; 0]);
}

fn used(machine: &SimulatedMachine) -> u64 {
    let holders = machine.process_usage("0").unwrap();
    holders.iter().map(|holder| holder.used).sum()
}

#[test]
fn answers_old_names_as_their_newer_forms() {
    let name = "names::answers_old_names_as_their_newer_forms";
    on_machine(name, TWO_A100, |machine| {
        let cuda = Cuda::ready();
        let primary = used(machine);
        let mut context = 0_u64;
        ok!(cuda, cuCtxCreate(*mut u64: &raw mut context, u32: 0, i32: 0));
        assert_eq!(used(machine), 2 * primary);
        let event = cuda.event();
        ok!(cuda, cuEventDestroy(u64: event));
        assert_eq!(cuda.query(event), INVALID_HANDLE);
        let stream = cuda.stream();
        ok!(cuda, cuStreamDestroy(u64: stream));
        let mut popped = 0_u64;
        ok!(cuda, cuCtxPopCurrent(*mut u64: &raw mut popped));
        assert_eq!(popped, context);
        ok!(cuda, cuCtxPushCurrent(u64: context));
        ok!(cuda, cuCtxDestroy(u64: context));
        assert_eq!(used(machine), primary);

        let (mut free, mut total) = (0_u32, 0_u32);
        let info = call!(cuda, cuMemGetInfo(*mut u32: &raw mut free, *mut u32: &raw mut total));
        assert_eq!((info, free, total), (OK, u32::MAX, u32::MAX));
    });
}

#[test]
fn launches_by_calls_from_before_cuda_4() {
    let name = "names::launches_by_calls_from_before_cuda_4";
    on_machine(name, TWO_A100, |_| {
        let cuda = Cuda::ready();
        let kernel = cuda.kernel("k_ms_20");
        assert_eq!(
            call!(cuda, cuLaunchGrid(u64: kernel, i32: 8, i32: 1)),
            INVALID_VALUE
        );
        ok!(cuda, cuFuncSetBlockShape(u64: kernel, i32: 32, i32: 1, i32: 1));
        let (start, end) = (cuda.event(), cuda.event());
        ok!(cuda, cuLaunchGrid(u64: kernel, i32: 8, i32: 1));
        assert_eq!(cuda.record(start, 0), OK);
        ok!(cuda, cuLaunch(u64: kernel));
        assert_eq!(cuda.record(end, 0), OK);
        assert_eq!(cuda.synchronize(), OK);
        let took = cuda.elapsed(start, end).unwrap();
        assert!((took - 20.0).abs() < 0.001, "{took}");
    });
}

/// PTX with two kernels.
const PTX: &std::ffi::CStr =
    c".version 8.0\n.visible .entry one(\n)\n{ret;}\n.visible .entry two(\n)\n{ret;}\n";

#[test]
fn enumerates_kernels_of_a_library_with_their_facts() {
    let name = "names::enumerates_kernels_of_a_library_with_their_facts";
    on_machine(name, TWO_A100, |_| {
        let cuda = Cuda::ready();
        let mut library = 0_u64;
        ok!(cuda, cuLibraryLoadData(
            *mut u64: &raw mut library, *const i8: PTX.as_ptr(), u64: 0, u64: 0, u32: 0, u64: 0,
            u64: 0, u32: 0,
        ));
        let mut count = 0_u32;
        let counted = call!(cuda, cuLibraryGetKernelCount(*mut u32: &raw mut count, u64: library));
        assert_eq!((counted, count), (OK, 2));
        let mut kernels = [0_u64; 2];
        ok!(cuda, cuLibraryEnumerateKernels(
            *mut u64: kernels.as_mut_ptr(), u32: 2, u64: library,
        ));
        let (mut owner, mut threads) = (0_u64, 0_i32);
        let found = call!(cuda, cuKernelGetLibrary(*mut u64: &raw mut owner, u64: kernels[1]));
        assert_eq!((found, owner), (OK, library));
        let found = call!(cuda, cuKernelGetAttribute(
            *mut i32: &raw mut threads, u32: 0, u64: kernels[1], i32: 0,
        ));
        assert_eq!((found, threads), (OK, 1024));
        let (mut grid, mut block) = (0_i32, 0_i32);
        let found = call!(cuda, cuOccupancyMaxPotentialBlockSize(
            *mut i32: &raw mut grid, *mut i32: &raw mut block, u64: kernels[0], u64: 0, u64: 0,
            i32: 0,
        ));
        assert_eq!((found, grid, block), (OK, 2 * 108, 1024));
        assert_eq!(cuda.launch(kernels[0], 0), OK);
    });
}

#[test]
fn links_ptx_into_an_image_that_loads() {
    let name = "names::links_ptx_into_an_image_that_loads";
    on_machine(name, TWO_A100, |_| {
        let cuda = Cuda::ready();
        let mut state = 0_u64;
        ok!(cuda, cuLinkCreate_v2(
            u32: 0, u64: 0, u64: 0, *mut u64: &raw mut state,
        ));
        let text = PTX.to_bytes_with_nul();
        ok!(cuda, cuLinkAddData_v2(
            u64: state, u32: 1, *const u8: text.as_ptr(), usize: text.len(), u64: 0, u32: 0, u64: 0,
            u64: 0,
        ));
        let (mut image, mut size) = (std::ptr::null_mut::<c_void>(), 0_usize);
        ok!(cuda, cuLinkComplete(
            u64: state, *mut *mut c_void: &raw mut image, *mut usize: &raw mut size,
        ));
        assert!(size >= text.len(), "{size}");
        let (mut module, mut function) = (0_u64, 0_u64);
        ok!(cuda, cuModuleLoadData(*mut u64: &raw mut module, *mut c_void: image));
        ok!(cuda, cuLinkDestroy(u64: state));
        ok!(cuda, cuModuleGetFunction(
            *mut u64: &raw mut function, u64: module, *const i8: c"two".as_ptr(),
        ));
    });
}

#[test]
fn writes_words_and_calls_back_in_stream_order() {
    let name = "names::writes_words_and_calls_back_in_stream_order";
    on_machine(name, TWO_A100, |_| {
        let cuda = Cuda::ready();
        let (stream, pointer) = (cuda.stream(), cuda.alloc(4096).unwrap());
        ok!(cuda, cuStreamWriteValue64_v2(
            u64: stream, u64: pointer, u64: 7, u32: 0,
        ));
        let mut back = 0_u64;
        let copied = call!(cuda, cuMemcpyDtoH_v2(*mut u64: &raw mut back, u64: pointer, usize: 8));
        assert_eq!((copied, back), (OK, 7));
        ok!(cuda, cuStreamWaitValue64_v2(u64: stream, u64: pointer, u64: 7, u32: 1));
        let called = AtomicU32::new(0);
        let data = (&raw const called).expose_provenance() as u64;
        ok!(cuda, cuStreamAddCallback(
            u64: stream, Callback: count_call, u64: data, u32: 0,
        ));
        ok!(cuda, cuStreamSynchronize(u64: stream));
        until("the callback ran", || called.load(Relaxed) == 1);
    });
}

/// `CUstreamCallback`.
type Callback = extern "C" fn(u64, u32, *const AtomicU32);

extern "C" fn count_call(_stream: u64, code: u32, calls: *const AtomicU32) {
    assert_eq!(code, OK);
    // SAFETY: the test's counter, which lives until it is 1.
    unsafe { &*calls }.fetch_add(1, Relaxed);
}
