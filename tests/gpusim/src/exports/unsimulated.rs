//! Names that a driver exports and that are not simulated: each answers that it is not supported.
//! `build.rs` declares them.

use nvml_wrapper_sys::bindings::{
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED, nvmlReturn_t,
};

use crate::ffi::answer;
use crate::library;

/// Calls whose arguments are not read.
macro_rules! unsimulated {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> nvmlReturn_t {
            answer(|| library::state().and(Err(NOT_SUPPORTED)))
        }
    )*};
}

include!(concat!(env!("OUT_DIR"), "/unsimulated.rs"));
