//! A C client of NVML for `calls` and others: the library opened by its path, calls by name,
//! codes.

use std::ffi::{CStr, c_char, c_uint};

use aliquot_gpusim::place;
use nvml_wrapper_sys::bindings::*;

pub(crate) const OK: nvmlReturn_t = nvmlReturn_enum_NVML_SUCCESS;
pub(crate) const UNINITIALIZED: nvmlReturn_t = nvmlReturn_enum_NVML_ERROR_UNINITIALIZED;
pub(crate) const INVALID_ARGUMENT: nvmlReturn_t = nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT;
pub(crate) const NOT_SUPPORTED: nvmlReturn_t = nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED;
pub(crate) const NOT_FOUND: nvmlReturn_t = nvmlReturn_enum_NVML_ERROR_NOT_FOUND;
pub(crate) const VERSION_MISMATCH: nvmlReturn_t =
    nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH;

/// The library, opened as a client does.
pub(crate) fn library() -> NvmlLib {
    // SAFETY: the library has no load-time code of its own.
    unsafe { NvmlLib::new(place::library_path().unwrap()).unwrap() }
}

/// Makes a call of an NVML library; its arguments are what its documentation asks for.
macro_rules! call {
    ($call:expr) => {{
        // SAFETY: each argument is what the call documents, or null where that is tested, and
        // lives through the call.
        unsafe { $call }
    }};
}

pub(crate) fn opened() -> NvmlLib {
    let library = library();
    assert_eq!(call!(library.nvmlInit_v2()), OK);
    library
}

pub(crate) fn device_handle(library: &NvmlLib, index: c_uint) -> nvmlDevice_t {
    let mut device = std::ptr::null_mut();
    assert_eq!(
        call!(library.nvmlDeviceGetHandleByIndex_v2(index, &raw mut device)),
        OK
    );
    device
}

pub(crate) fn number(
    read: impl FnOnce(*mut c_uint) -> nvmlReturn_t,
) -> Result<c_uint, nvmlReturn_t> {
    let mut value = c_uint::MAX;
    match read(&raw mut value) {
        OK => Ok(value),
        code => Err(code),
    }
}

pub(crate) fn words(read: impl FnOnce(*mut c_char, c_uint) -> nvmlReturn_t) -> String {
    let mut buffer = [1; 96];
    assert_eq!(read(buffer.as_mut_ptr(), 96), OK);
    // SAFETY: the call reported that it wrote a text, which ends with a zero.
    unsafe { CStr::from_ptr(buffer.as_ptr()) }
        .to_str()
        .unwrap()
        .to_owned()
}
pub(crate) use call;
