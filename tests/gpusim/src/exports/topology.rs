//! A GPU's topology: nearby CPUs and memory, distance to other GPUs, `NVLink`.

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
use crate::model::{Gpu, LINK_NONE, LINK_SWITCH, MAX_LINKS};

const LEVEL_NODE: u32 = 40;
const P2P_OK: c_uint = 0;
const P2P_CHIPSET_NOT_SUPPORTED: c_uint = 1;
const P2P_NOT_SUPPORTED: c_uint = 5;
const NVSWITCH_ID: u32 = 0x1AF1_10DE;
const REMOTE_GPU: c_uint = 0;
const REMOTE_SWITCH: c_uint = 2;

calls! {
    nvmlDeviceGetCpuAffinity(device: nvmlDevice_t, size: c_uint, set: Out<c_ulong>) {
        put_set(&library::gpu(device)?.cpu_affinity, size, &set)
    }

    nvmlDeviceGetCpuAffinityWithinScope(
        device: nvmlDevice_t, size: c_uint, set: Out<c_ulong>, scope: c_uint,
    ) {
        let gpu = library::gpu(device)?;
        known_scope(scope)?;
        put_set(&gpu.cpu_affinity, size, &set)
    }

    nvmlDeviceGetMemoryAffinity(
        device: nvmlDevice_t, size: c_uint, set: Out<c_ulong>, scope: c_uint,
    ) {
        let gpu = library::gpu(device)?;
        known_scope(scope)?;
        let node = u32::try_from(gpu.numa).map_err(|_| NOT_SUPPORTED)?;
        put_set(&[1_u64.checked_shl(node).ok_or(UNKNOWN)?], size, &set)
    }
}

fn known_scope(scope: c_uint) -> Answer {
    if scope > 1 {
        return Err(INVALID_ARGUMENT);
    }
    Ok(())
}

/// Writes `size` words; those beyond what is known are 0.
fn put_set(words: &[u64], size: c_uint, set: &Out<c_ulong>) -> Answer {
    let size = usize::try_from(size).map_err(|_| UNKNOWN)?;
    if size == 0 {
        return Err(INVALID_ARGUMENT);
    }
    let mut wide = words.to_vec();
    wide.resize(size, 0);
    set.put_all(&wide)
}

calls! {
    nvmlDeviceGetTopologyCommonAncestor(
        device: nvmlDevice_t, other: nvmlDevice_t, level: Out<c_uint>,
    ) {
        let (gpu, _) = pair(device, other)?;
        level.put(gpu.levels[library::index(other)?])
    }

    nvmlDeviceGetP2PStatus(
        device: nvmlDevice_t, other: nvmlDevice_t, capability: c_uint, status: Out<c_uint>,
    ) {
        let (gpu, peer) = pair(device, other)?;
        let (here, there) = (library::index(device)?, library::index(other)?);
        let linked = leads_to(&gpu, there) && leads_to(&peer, here);
        let near = gpu.levels[there] <= LEVEL_NODE;
        status.put(match capability {
            0 | 1 if linked || near => P2P_OK,
            0 | 1 => P2P_CHIPSET_NOT_SUPPORTED,
            2 | 3 if linked => P2P_OK,
            4 if near => P2P_OK,
            2..=4 => P2P_NOT_SUPPORTED,
            _ => return Err(INVALID_ARGUMENT),
        })
    }
}

fn pair(device: nvmlDevice_t, other: nvmlDevice_t) -> Answer<(Box<Gpu>, Box<Gpu>)> {
    Ok((library::gpu(device)?, library::gpu(other)?))
}

fn leads_to(gpu: &Gpu, peer: usize) -> bool {
    let direct = u32::try_from(peer + 1).expect("less than MAX_GPUS");
    gpu.nvlink
        .iter()
        .any(|leads| *leads == LINK_SWITCH || *leads == direct)
}

calls! {
    nvmlDeviceGetNvLinkState(device: nvmlDevice_t, link: c_uint, active: Out<c_uint>) {
        connected(device, link).and_then(|_| active.put(1))
    }

    nvmlDeviceGetNvLinkVersion(device: nvmlDevice_t, link: c_uint, version: Out<c_uint>) {
        connected(device, link)?;
        version.put(library::gpu(device)?.nvlink_version)
    }

    /// Every capability is there, except the bridge of graphics GPUs.
    nvmlDeviceGetNvLinkCapability(
        device: nvmlDevice_t, link: c_uint, capability: c_uint, result: Out<c_uint>,
    ) {
        connected(device, link)?;
        result.put(match capability {
            0..=3 | 5 => 1,
            4 => 0,
            _ => return Err(INVALID_ARGUMENT),
        })
    }

    nvmlDeviceGetNvLinkRemotePciInfo_v2(
        device: nvmlDevice_t, link: c_uint, pci: Out<nvmlPciInfo_t>,
    ) {
        pci.put(match connected(device, link)? {
            LINK_SWITCH => pci_place((0, 0xC1 + link % 6, 0), NVSWITCH_ID, NVSWITCH_ID),
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
