//! Initialisation, shutdown and versions.

use std::ffi::{c_char, c_int, c_uint};

use super::calls;
use crate::ffi::{Out, put_text};
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
        let nvml = format!("13.{}", text(&library::machine()?.driver));
        put_text(&version, length, &nvml)
    }

    nvmlSystemGetCudaDriverVersion | nvmlSystemGetCudaDriverVersion_v2(version: Out<c_int>) {
        version.put(library::machine()?.cuda.cast_signed())
    }
}
