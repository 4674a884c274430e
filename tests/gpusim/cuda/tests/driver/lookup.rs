//! `cuGetProcAddress` honours version and flags, and gives the exported symbols.
//!
//! Facts of: CUDA Driver API, Driver Entry Point Access.

use std::ffi::{CString, c_void};

use crate::client::*;
use crate::common::{TWO_A100, on_machine};

type Answer = Result<&'static str, u32>;

fn check(cuda: Cuda, (name, version, flags): (&str, i32, u64), expected: Answer, status: u32) {
    let text = CString::new(name).unwrap();
    let (mut address, mut reported) = (std::ptr::dangling_mut::<c_void>(), 9);
    let code = call!(cuda, cuGetProcAddress_v2(
        *const i8: text.as_ptr(), *mut *mut c_void: &raw mut address, i32: version, u64: flags,
        *mut u32: &raw mut reported,
    ));
    let shown = format!("{name} at {version}, flags {flags}");
    match expected {
        Ok(symbol) => {
            assert_eq!(
                (code, address),
                (OK, cuda.symbol(symbol)),
                "{shown}: not {symbol}"
            );
        }
        // The driver answers success, and reports by the status and the address.
        Err(NOT_FOUND) => assert_eq!((code, address), (OK, std::ptr::null_mut()), "{shown}"),
        Err(wanted) => assert_eq!(code, wanted, "{shown}"),
    }
    assert_eq!(reported, status, "{shown}");
}

#[test]
fn resolves_symbol_by_version_and_default_stream() {
    on_machine(TWO_A100, |_| {
        let cuda = Cuda::open();
        for (asked, expected, status) in [
            (("cuMemAlloc", 12_000, 0), Ok("cuMemAlloc_v2"), 0),
            (("cuMemAlloc", 3010, 0), Ok("cuMemAlloc"), 0),
            (("cuMemFree", 3010, 0), Ok("cuMemFree"), 0),
            (("cuEventDestroy", 3020, 0), Ok("cuEventDestroy"), 0),
            (("cuMemAllocAsync", 11_010, 0), Err(NOT_FOUND), 2),
            (("cuMemAlloc_v2", 12_000, 0), Err(NOT_FOUND), 1),
            (("cuMemcpyHtoD", 12_000, 1), Ok("cuMemcpyHtoD_v2"), 0),
            (("cuMemcpyHtoD", 12_000, 2), Ok("cuMemcpyHtoD_v2_ptds"), 0),
            (("cuMemcpyHtoD", 6000, 2), Err(NOT_FOUND), 2),
            (("cuMemcpyHtoD", 12_000, 3), Ok("cuMemcpyHtoD_v2_ptds"), 0),
            (("cuMemcpyHtoD", 12_000, 4), Err(INVALID_VALUE), 9),
            (("cuInit", -1, 2), Ok("cuInit"), 0),
            (("cuDeviceGetUuid", 9020, 0), Ok("cuDeviceGetUuid"), 0),
            (("cuDeviceGetUuid", 11_040, 0), Ok("cuDeviceGetUuid_v2"), 0),
            (("cuCtxCreate", 11_030, 0), Ok("cuCtxCreate_v2"), 0),
            (("cuCtxCreate", 12_000, 0), Ok("cuCtxCreate_v3"), 0),
            (("cuCtxCreate", 13_000, 0), Ok("cuCtxCreate_v4"), 0),
            (("cuGetProcAddress", 11_080, 0), Ok("cuGetProcAddress"), 0),
            (
                ("cuGetProcAddress", 12_000, 0),
                Ok("cuGetProcAddress_v2"),
                0,
            ),
            (("cuFoo", 12_000, 0), Err(NOT_FOUND), 1),
            (("cuInit", 12_000, 2), Ok("cuInit"), 0),
        ] {
            check(cuda, asked, expected, status);
        }
        assert!(cuda.find("cuFoo").is_null());
    });
}

#[test]
fn older_driver_lacks_newer_functions() {
    let yaml = "{cuda: '11.4', gpus: [{model: Tesla T4}]}";
    on_machine(yaml, |_| {
        let cuda = Cuda::ready();
        let mut version = 0;
        ok!(cuda, cuDriverGetVersion(*mut i32: &raw mut version));
        assert_eq!(version, 11_040);
        check(cuda, ("cuCtxCreate", 12_080, 0), Ok("cuCtxCreate_v3"), 0);
        check(cuda, ("cuCtxGetId", 12_080, 0), Err(NOT_FOUND), 1);
    });
}
