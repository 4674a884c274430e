//! `nvmlErrorString`: the text of each code. Needs no initialised library.

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
        5 => c"Already Initialized",
        6 => c"Not Found",
        7 => c"Insufficient Size",
        8 => c"Insufficient External Power",
        9 => c"Driver Not Loaded",
        10 => c"Timeout",
        11 => c"Interrupt Request Issue",
        12 => c"NVML Shared Library Not Found",
        13 => c"Function Not Found",
        14 => c"Corrupted infoROM",
        15 => c"GPU is lost",
        16 => c"GPU requires restart",
        17 => c"The operating system has blocked the request.",
        18 => c"RM has detected an NVML/RM version mismatch.",
        19 => c"Device in Use",
        20 => c"Insufficient Memory",
        21 => c"No data",
        22 => c"Vgpu operation is not available on target device, because ECC is enabled",
        23 => c"Insufficient Resources",
        24 => c"Requested frequency is not supported",
        25 => c"Argument version mismatch",
        26 => c"Deprecated",
        27 => c"System is not ready",
        28 => c"GPU not found",
        29 => c"Invalid State",
        _ => c"Unknown Error",
    }
}
