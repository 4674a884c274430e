//! The registration of a GPU with the fabric of a system with `NVSwitch`. `nvml_wrapper` lacks the
//! calls.

use std::ffi::{c_uchar, c_uint};

use nvml_wrapper::error::{NvmlError as Cause, nvml_sym, nvml_try};
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{
    NVML_GPU_FABRIC_STATE_COMPLETED, NVML_GPU_FABRIC_STATE_IN_PROGRESS,
    NVML_GPU_FABRIC_STATE_NOT_STARTED, nvmlGpuFabricInfo_t, nvmlGpuFabricInfo_v2_t,
    nvmlGpuFabricInfoV_t, nvmlGpuFabricState_t, nvmlReturn_enum_NVML_SUCCESS as SUCCESS,
    nvmlReturn_t,
};

use crate::calls::{is_missing, struct_version};
use crate::facts::UnfinishedRegistration;

/// NVML's number for version 2 of the struct, the first one.
const V2: c_uint = struct_version::<nvmlGpuFabricInfo_v2_t>(2);
const NO_CLUSTER: [c_uchar; 16] = [0; 16];

/// The registration of a GPU that waits for its fabric. `None` if the GPU is registered, has no
/// fabric, or the driver does not report it.
pub(crate) fn unfinished_registration(
    nvml: &Nvml,
    device: &Device,
) -> Option<UnfinishedRegistration> {
    let registration = match registration_v2(nvml, device) {
        // Drivers before 545 lack this call, drivers before 525 also the one without a version.
        Err(e) if is_missing(&e) => registration_v1(nvml, device),
        answer => answer,
    };
    let (state, status) = registration.ok()?;
    unfinished(state, status)
}

/// What NVML's state of a registration and its result mean. The result counts only at the end.
fn unfinished(state: nvmlGpuFabricState_t, status: nvmlReturn_t) -> Option<UnfinishedRegistration> {
    match c_uint::from(state) {
        NVML_GPU_FABRIC_STATE_NOT_STARTED => Some(UnfinishedRegistration::NotStarted),
        NVML_GPU_FABRIC_STATE_IN_PROGRESS => Some(UnfinishedRegistration::InProgress),
        NVML_GPU_FABRIC_STATE_COMPLETED if status != SUCCESS => {
            Some(UnfinishedRegistration::Failed(status))
        }
        _ => None,
    }
}

fn registration_v2(
    nvml: &Nvml,
    device: &Device,
) -> Result<(nvmlGpuFabricState_t, nvmlReturn_t), Cause> {
    let call = nvml_sym(nvml.lib().nvmlDeviceGetGpuFabricInfoV.as_ref())?;
    let mut info = nvmlGpuFabricInfoV_t {
        version: V2,
        clusterUuid: NO_CLUSTER,
        status: SUCCESS,
        cliqueId: 0,
        state: 0,
        healthMask: 0,
        healthSummary: 0,
    };
    // SAFETY: the symbol has this signature; the handle is this library's; the driver writes the
    // fields of the declared version, with which the struct begins; it lives through the call.
    nvml_try(unsafe { call(device.handle(), &raw mut info) })?;
    Ok((info.state, info.status))
}

fn registration_v1(
    nvml: &Nvml,
    device: &Device,
) -> Result<(nvmlGpuFabricState_t, nvmlReturn_t), Cause> {
    let call = nvml_sym(nvml.lib().nvmlDeviceGetGpuFabricInfo.as_ref())?;
    let mut info = nvmlGpuFabricInfo_t {
        clusterUuid: NO_CLUSTER,
        status: SUCCESS,
        cliqueId: 0,
        state: 0,
    };
    // SAFETY: the symbol has this signature; the handle is this library's; the struct lives
    // through the call.
    nvml_try(unsafe { call(device.handle(), &raw mut info) })?;
    Ok((info.state, info.status))
}

#[cfg(test)]
mod tests {
    use nvml_wrapper_sys::bindings::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_RESOURCES as INSUFFICIENT_RESOURCES;

    use super::*;

    #[test]
    fn fabric_is_ready_after_successful_registration_or_absent() {
        for (state, status, expected) in [
            (0, SUCCESS, None),
            (0, INSUFFICIENT_RESOURCES, None),
            (1, SUCCESS, Some("not started")),
            (1, INSUFFICIENT_RESOURCES, Some("not started")),
            (2, SUCCESS, Some("in progress")),
            (2, INSUFFICIENT_RESOURCES, Some("in progress")),
            (3, SUCCESS, None),
            (3, INSUFFICIENT_RESOURCES, Some("failed with NVML error 23")),
            (4, SUCCESS, None),
        ] {
            let found = unfinished(state, status).map(|registration| registration.to_string());
            assert_eq!(found.as_deref(), expected, "{state} {status}");
        }
    }
}
