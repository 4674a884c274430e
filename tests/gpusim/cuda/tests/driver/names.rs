//! Every name that a driver exports is there, the old ones answer as their new forms do, and what
//! is not simulated says so.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use aliquot_gpusim::{SimulatedMachine, place};

use crate::client::*;
use crate::common::{TWO_A100, on_machine, until};

/// What a driver exports, by library.
const CUDA: &str = include_str!("../../../../../limiter/names/cuda-13.5.txt");
const NVML: &str = include_str!("../../../../../limiter/names/nvml-13.5.txt");

const NOT_SUPPORTED: u32 = 801;

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

#[test]
fn rejects_calls_that_are_not_simulated() {
    let name = "names::rejects_calls_that_are_not_simulated";
    on_machine(name, TWO_A100, |_| {
        let cuda = Cuda::open();
        let import = || {
            let mut memory = 0;
            call!(
                cuda,
                cuImportExternalMemory(*mut u64, u64),
                &raw mut memory,
                0
            )
        };
        assert_eq!(import(), NOT_INITIALIZED);
        assert_eq!(call!(cuda, cuInit(u32), 0), OK);
        assert_eq!(import(), NOT_SUPPORTED);
    });
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
        let created = call!(
            cuda,
            cuCtxCreate(*mut u64, u32, i32),
            &raw mut context,
            0,
            0
        );
        assert_eq!(created, OK);
        assert_eq!(used(machine), 2 * primary);
        let event = cuda.event();
        assert_eq!(call!(cuda, cuEventDestroy(u64), event), OK);
        assert_eq!(cuda.query(event), INVALID_HANDLE);
        let stream = cuda.stream();
        assert_eq!(call!(cuda, cuStreamDestroy(u64), stream), OK);
        let mut popped = 0_u64;
        assert_eq!(call!(cuda, cuCtxPopCurrent(*mut u64), &raw mut popped), OK);
        assert_eq!(popped, context);
        assert_eq!(call!(cuda, cuCtxPushCurrent(u64), context), OK);
        assert_eq!(call!(cuda, cuCtxDestroy(u64), context), OK);
        assert_eq!(used(machine), primary);

        let (mut free, mut total) = (0_u32, 0_u32);
        let info = call!(
            cuda,
            cuMemGetInfo(*mut u32, *mut u32),
            &raw mut free,
            &raw mut total
        );
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
            call!(cuda, cuLaunchGrid(u64, i32, i32), kernel, 8, 1),
            INVALID_VALUE
        );
        let shape = call!(
            cuda,
            cuFuncSetBlockShape(u64, i32, i32, i32),
            kernel,
            32,
            1,
            1
        );
        assert_eq!(shape, OK);
        let (start, end) = (cuda.event(), cuda.event());
        assert_eq!(call!(cuda, cuLaunchGrid(u64, i32, i32), kernel, 8, 1), OK);
        assert_eq!(cuda.record(start, 0), OK);
        assert_eq!(call!(cuda, cuLaunch(u64), kernel), OK);
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
        let loaded = call!(
            cuda,
            cuLibraryLoadData(*mut u64, *const i8, u64, u64, u32, u64, u64, u32),
            &raw mut library,
            PTX.as_ptr(),
            0,
            0,
            0,
            0,
            0,
            0
        );
        assert_eq!(loaded, OK);
        let mut count = 0_u32;
        let counted = call!(
            cuda,
            cuLibraryGetKernelCount(*mut u32, u64),
            &raw mut count,
            library
        );
        assert_eq!((counted, count), (OK, 2));
        let mut kernels = [0_u64; 2];
        let listed = call!(
            cuda,
            cuLibraryEnumerateKernels(*mut u64, u32, u64),
            kernels.as_mut_ptr(),
            2,
            library
        );
        assert_eq!(listed, OK);
        let (mut owner, mut threads) = (0_u64, 0_i32);
        let found = call!(
            cuda,
            cuKernelGetLibrary(*mut u64, u64),
            &raw mut owner,
            kernels[1]
        );
        assert_eq!((found, owner), (OK, library));
        let found = call!(
            cuda,
            cuKernelGetAttribute(*mut i32, u32, u64, i32),
            &raw mut threads,
            0,
            kernels[1],
            0
        );
        assert_eq!((found, threads), (OK, 1024));
        let (mut grid, mut block) = (0_i32, 0_i32);
        let found = call!(
            cuda,
            cuOccupancyMaxPotentialBlockSize(*mut i32, *mut i32, u64, u64, u64, i32),
            &raw mut grid,
            &raw mut block,
            kernels[0],
            0,
            0,
            0
        );
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
        let created = call!(
            cuda,
            cuLinkCreate_v2(u32, u64, u64, *mut u64),
            0,
            0,
            0,
            &raw mut state
        );
        assert_eq!(created, OK);
        let text = PTX.to_bytes_with_nul();
        let added = call!(
            cuda,
            cuLinkAddData_v2(u64, u32, *const u8, usize, u64, u32, u64, u64),
            state,
            1,
            text.as_ptr(),
            text.len(),
            0,
            0,
            0,
            0
        );
        assert_eq!(added, OK);
        let (mut image, mut size) = (std::ptr::null_mut::<c_void>(), 0_usize);
        let linked = call!(
            cuda,
            cuLinkComplete(u64, *mut *mut c_void, *mut usize),
            state,
            &raw mut image,
            &raw mut size
        );
        assert_eq!(linked, OK);
        assert!(size >= text.len(), "{size}");
        let (mut module, mut function) = (0_u64, 0_u64);
        let loaded = call!(
            cuda,
            cuModuleLoadData(*mut u64, *mut c_void),
            &raw mut module,
            image
        );
        assert_eq!(loaded, OK);
        assert_eq!(call!(cuda, cuLinkDestroy(u64), state), OK);
        let found = call!(
            cuda,
            cuModuleGetFunction(*mut u64, u64, *const i8),
            &raw mut function,
            module,
            c"two".as_ptr()
        );
        assert_eq!(found, OK);
    });
}

#[test]
fn writes_words_and_calls_back_in_stream_order() {
    let name = "names::writes_words_and_calls_back_in_stream_order";
    on_machine(name, TWO_A100, |_| {
        let cuda = Cuda::ready();
        let (stream, pointer) = (cuda.stream(), cuda.alloc(4096).unwrap());
        let written = call!(
            cuda,
            cuStreamWriteValue64_v2(u64, u64, u64, u32),
            stream,
            pointer,
            7,
            0
        );
        assert_eq!(written, OK);
        let mut back = 0_u64;
        let copied = call!(
            cuda,
            cuMemcpyDtoH_v2(*mut u64, u64, usize),
            &raw mut back,
            pointer,
            8
        );
        assert_eq!((copied, back), (OK, 7));
        let waited = call!(
            cuda,
            cuStreamWaitValue64_v2(u64, u64, u64, u32),
            stream,
            pointer,
            7,
            1
        );
        assert_eq!(waited, OK);
        let called = AtomicU32::new(0);
        let data = (&raw const called).expose_provenance() as u64;
        let added = call!(
            cuda,
            cuStreamAddCallback(u64, extern "C" fn(u64, u32, *const AtomicU32), u64, u32),
            stream,
            count_call,
            data,
            0
        );
        assert_eq!(added, OK);
        assert_eq!(call!(cuda, cuStreamSynchronize(u64), stream), OK);
        until("the callback ran", || called.load(Relaxed) == 1);
    });
}

extern "C" fn count_call(_stream: u64, code: u32, calls: *const AtomicU32) {
    assert_eq!(code, OK);
    // SAFETY: the test's counter, which lives until it is 1.
    unsafe { &*calls }.fetch_add(1, Relaxed);
}
