//! Initialisation, shutdown, versions and process names.

use std::ffi::{c_char, c_int, c_uint};

use nvml_wrapper_sys::bindings::{nvmlReturn_enum_NVML_ERROR_NOT_FOUND as NOT_FOUND, nvmlReturn_t};

use crate::ffi::{Out, answer, put_text, text_field};
use crate::library;
use crate::model::text;

#[unsafe(no_mangle)]
extern "C" fn nvmlInit() -> nvmlReturn_t {
    answer(library::init)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> nvmlReturn_t {
    answer(library::init)
}

/// The flags change how a driver attaches to its GPUs, which makes no difference here.
#[unsafe(no_mangle)]
extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> nvmlReturn_t {
    answer(library::init)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> nvmlReturn_t {
    answer(library::shutdown)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetDriverVersion(version: Out<c_char>, length: c_uint) -> nvmlReturn_t {
    answer(|| put_text(&version, length, text(&library::machine()?.driver)))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetNVMLVersion(version: Out<c_char>, length: c_uint) -> nvmlReturn_t {
    answer(|| put_text(&version, length, text(&library::machine()?.nvml)))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetCudaDriverVersion(version: Out<c_int>) -> nvmlReturn_t {
    answer(|| version.put(library::machine()?.cuda.cast_signed()))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetCudaDriverVersion_v2(version: Out<c_int>) -> nvmlReturn_t {
    answer(|| version.put(library::machine()?.cuda.cast_signed()))
}

/// The first argument of any process of this system; truncated if it does not fit, as in NVML.
#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetProcessName(
    pid: c_uint,
    name: Out<c_char>,
    length: c_uint,
) -> nvmlReturn_t {
    answer(|| {
        library::state()?;
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).map_err(|_| NOT_FOUND)?;
        let first = command.split(|b| *b == 0).next().unwrap_or_default();
        let truncated: [c_char; 256] = text_field(&String::from_utf8_lossy(first));
        let end = usize::try_from(length).unwrap_or(256).min(256);
        let mut shown = truncated[..end].to_vec();
        if let Some(last) = shown.last_mut() {
            *last = 0;
        }
        name.put_all(&shown)
    })
}
