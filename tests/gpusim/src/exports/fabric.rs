//! The registration of a GPU with its NVLink fabric.

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlGpuFabricInfo_v2_t, nvmlGpuFabricState_t,
    nvmlReturn_enum_NVML_ERROR_UNKNOWN as UNKNOWN,
};

use super::calls;
use crate::ffi::{Out, struct_version};
use crate::library;

calls! {
    /// Version 2, the first one.
    nvmlDeviceGetGpuFabricInfoV(device: nvmlDevice_t, out: Out<nvmlGpuFabricInfo_v2_t>) {
        let gpu = library::gpu(device)?;
        out.check_version(2)?;
        out.put(nvmlGpuFabricInfo_v2_t {
            version: struct_version::<nvmlGpuFabricInfo_v2_t>(2),
            clusterUuid: [0; 16],
            status: gpu.fabric_status,
            cliqueId: 0,
            state: nvmlGpuFabricState_t::try_from(gpu.fabric_state).map_err(|_| UNKNOWN)?,
            healthMask: 0,
        })
    }
}
