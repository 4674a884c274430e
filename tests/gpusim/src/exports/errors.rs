//! `nvmlErrorString`: the texts of the codes that calls answer here. Needs no initialised library.

use std::ffi::{CStr, c_char};

use nvml_wrapper_sys::bindings::nvmlReturn_t;

#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(result: nvmlReturn_t) -> *const c_char {
    words(result).as_ptr()
}

fn words(result: nvmlReturn_t) -> &'static CStr {
    match result {
        0 => c"Success",
        1 => c"Uninitialized",
        2 => c"Invalid Argument",
        3 => c"Not Supported",
        4 => c"Insufficient Permissions",
        6 => c"Not Found",
        7 => c"Insufficient Size",
        9 => c"Driver Not Loaded",
        10 => c"Timeout",
        13 => c"Function Not Found",
        15 => c"GPU is lost",
        19 => c"Device in Use",
        23 => c"Insufficient Resources",
        25 => c"Argument version mismatch",
        _ => c"Unknown Error",
    }
}
