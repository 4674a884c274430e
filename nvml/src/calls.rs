//! What all queries share: calls that a driver lacks, versions of structs, and the memory of a device.

use std::ffi::c_uint;

use aliquot_core::Mib;
use nvml_wrapper::error::{NvmlError as Cause, nvml_sym, nvml_try};
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::nvmlMemory_t;

const BYTES_IN_MIB: u64 = 1 << 20;

/// NVML's number for a version of a struct.
pub(crate) const fn struct_version<T>(version: c_uint) -> c_uint {
    let size = size_of::<T>();
    assert!(size < 1 << 24);
    #[expect(clippy::cast_possible_truncation, reason = "asserted above")]
    let size = size as u32;
    size | version << 24
}

/// Total and reserved memory. Drivers before 510 lack version 2 of the call.
pub(crate) fn memory(nvml: &Nvml, device: &Device) -> Result<(Mib, Option<Mib>), Cause> {
    match device.memory_info() {
        Ok(info) => Ok((mib(info.total), Some(mib(info.reserved)))),
        Err(e) if is_missing(&e) => memory_v1(nvml, device).map(|total| (total, None)),
        Err(e) => Err(e),
    }
}

/// `nvml_wrapper` lacks version 1.
fn memory_v1(nvml: &Nvml, device: &Device) -> Result<Mib, Cause> {
    let call = nvml_sym(nvml.lib().nvmlDeviceGetMemoryInfo.as_ref())?;
    let mut info = nvmlMemory_t {
        total: 0,
        free: 0,
        used: 0,
    };
    // SAFETY: the symbol has this signature in every NVML; the handle came from this library,
    // which outlives the borrow; the struct is the call's and lives through it.
    nvml_try(unsafe { call(device.handle(), &raw mut info) })?;
    Ok(mib(info.total))
}

fn mib(bytes: u64) -> Mib {
    Mib(bytes / BYTES_IN_MIB)
}

/// Shuts NVML down and initialises it again.
pub(crate) fn reopen(nvml: &Nvml) -> Result<(), Cause> {
    let shutdown = nvml_sym(nvml.lib().nvmlShutdown.as_ref())?;
    let init = nvml_sym(nvml.lib().nvmlInit_v2.as_ref())?;
    // SAFETY: both symbols have this signature, NVML may be called from any thread, and it refuses the
    // handles of other threads that are from before.
    let (_, initialised) = unsafe { (shutdown(), init()) };
    nvml_try(initialised)
}

/// Whether the driver lacks the call.
pub(crate) fn is_missing(error: &Cause) -> bool {
    matches!(
        error,
        Cause::FailedToLoadSymbol(_) | Cause::FunctionNotFound
    )
}
