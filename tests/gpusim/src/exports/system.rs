//! Initialisation, shutdown, versions and process names.

use std::ffi::{c_char, c_int, c_uint};

use nvml_wrapper_sys::bindings::nvmlReturn_enum_NVML_ERROR_NOT_FOUND as NOT_FOUND;

use super::calls;
use crate::ffi::{Out, put_text, text_field};
use crate::library;
use crate::model::text;

calls! {
    nvmlInit | nvmlInit_v2() { library::init() }

    /// The flags change how a driver attaches to its GPUs, which makes no difference here.
    nvmlInitWithFlags(_flags: c_uint) { library::init() }

    nvmlShutdown() { library::shutdown() }

    nvmlSystemGetDriverVersion(version: Out<c_char>, length: c_uint) {
        put_text(&version, length, text(&library::machine()?.driver))
    }

    nvmlSystemGetNVMLVersion(version: Out<c_char>, length: c_uint) {
        put_text(&version, length, text(&library::machine()?.nvml))
    }

    nvmlSystemGetCudaDriverVersion | nvmlSystemGetCudaDriverVersion_v2(version: Out<c_int>) {
        version.put(library::machine()?.cuda.cast_signed())
    }

    /// The first argument of any process of this system; truncated if it does not fit, as in NVML.
    nvmlSystemGetProcessName(pid: c_uint, name: Out<c_char>, length: c_uint) {
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
    }
}
