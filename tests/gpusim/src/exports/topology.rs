//! A GPU's topology: nearby memory, distance to other GPUs, `NVLink`.

use std::ffi::{c_uint, c_ulong};

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlPciInfo_t, nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED,
    nvmlReturn_enum_NVML_ERROR_UNKNOWN as UNKNOWN,
};

use super::calls;
use super::identity::{pci_info, pci_place};
use crate::ffi::{Answer, Out};
use crate::library;
use crate::model::{LINK_NONE, LINK_SWITCH, MAX_LINKS};

const NVSWITCH_ID: u32 = 0x1AF1_10DE;
const REMOTE_GPU: c_uint = 0;
const REMOTE_SWITCH: c_uint = 2;

calls! {
    nvmlDeviceGetMemoryAffinity(
        device: nvmlDevice_t, size: c_uint, set: Out<c_ulong>, scope: c_uint,
    ) {
        let gpu = library::gpu(device)?;
        if scope > 1 || size == 0 {
            return Err(INVALID_ARGUMENT);
        }
        let node = u32::try_from(gpu.numa).map_err(|_| NOT_SUPPORTED)?;
        // The words beyond the first are 0.
        let mut words = vec![0; usize::try_from(size).map_err(|_| UNKNOWN)?];
        words[0] = 1_u64.checked_shl(node).ok_or(UNKNOWN)?;
        set.put_all(&words)
    }

    nvmlDeviceGetTopologyCommonAncestor(
        device: nvmlDevice_t, other: nvmlDevice_t, level: Out<c_uint>,
    ) {
        library::gpu(other)?;
        level.put(library::gpu(device)?.levels[library::index(other)?])
    }

    nvmlDeviceGetNvLinkState(device: nvmlDevice_t, link: c_uint, active: Out<c_uint>) {
        connected(device, link).and_then(|_| active.put(1))
    }

    nvmlDeviceGetNvLinkRemotePciInfo_v2(
        device: nvmlDevice_t, link: c_uint, pci: Out<nvmlPciInfo_t>,
    ) {
        pci.put(match connected(device, link)? {
            LINK_SWITCH => pci_place(0xC1 + link % 6, NVSWITCH_ID),
            peer => {
                let peer = usize::try_from(peer - 1).map_err(|_| UNKNOWN)?;
                pci_info(
                    library::machine()?
                        .existing_gpus()
                        .get(peer)
                        .ok_or(UNKNOWN)?,
                )
            }
        })
    }

    nvmlDeviceGetNvLinkRemoteDeviceType(device: nvmlDevice_t, link: c_uint, kind: Out<c_uint>) {
        kind.put(match connected(device, link)? {
            LINK_SWITCH => REMOTE_SWITCH,
            _ => REMOTE_GPU,
        })
    }
}

/// Where a link leads.
fn connected(device: nvmlDevice_t, link: c_uint) -> Answer<u32> {
    let gpu = library::gpu(device)?;
    let link = usize::try_from(link).map_err(|_| UNKNOWN)?;
    if link >= MAX_LINKS {
        return Err(INVALID_ARGUMENT);
    }
    match gpu.nvlink[link] {
        LINK_NONE => Err(NOT_SUPPORTED),
        leads => Ok(leads),
    }
}
