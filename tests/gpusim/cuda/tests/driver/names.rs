//! Every name that a driver exports is there, the old ones answer as their new forms do, and what
//! is not simulated says so.
//!
//! Facts of: the names of real drivers in `limiter/names`, and the CUDA Driver API.

use aliquot_gpusim::place;

use crate::client::*;
use crate::common::{TWO_A100, on_machine, used_mib};

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

#[test]
fn answers_old_names_as_their_newer_forms() {
    on_machine(TWO_A100, |machine| {
        let cuda = Cuda::ready();
        let primary = used_mib(machine, "0");
        let mut context = 0_u64;
        ok!(cuda, cuCtxCreate(*mut u64: &raw mut context, u32: 0, i32: 0));
        assert_eq!(used_mib(machine, "0"), 2 * primary);
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
        assert_eq!(used_mib(machine, "0"), primary);

        let (mut free, mut total) = (0_u32, 0_u32);
        let info = call!(cuda, cuMemGetInfo(*mut u32: &raw mut free, *mut u32: &raw mut total));
        assert_eq!((info, free, total), (OK, u32::MAX, u32::MAX));
    });
}
