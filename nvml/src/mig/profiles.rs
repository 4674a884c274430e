//! A GPU's MIG profiles: the driver's ids, names, sizes and placements.

use std::ffi::{CStr, c_char, c_uint};

use aliquot_core::Mib;
use aliquot_core::mig::MigProfile;
use nvml_wrapper::error::{NvmlError as Cause, nvml_sym, nvml_try};
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{
    NVML_GPU_INSTANCE_PROFILE_COUNT, nvmlGpuInstancePlacement_t, nvmlGpuInstanceProfileInfo_t,
    nvmlGpuInstanceProfileInfo_v2_t,
    nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH as VERSION_MISMATCH,
};

use crate::calls::{is_missing, struct_version};

/// NVML's number for version 2 of the struct.
const V2: c_uint = struct_version::<nvmlGpuInstanceProfileInfo_v2_t>(2);
/// More profile kinds than any driver has; this binding's count may be too low for a later one.
const MOST_KINDS: c_uint = 2 * NVML_GPU_INSTANCE_PROFILE_COUNT;
/// More placements than a GPU has slices.
const MOST_PLACEMENTS: usize = 32;

/// A profile with the id that the driver's other calls expect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DriverProfile {
    pub(crate) id: c_uint,
    pub(crate) profile: MigProfile,
}

/// `c_char` as a byte; its sign depends on the platform.
pub(super) fn byte(letter: c_char) -> u8 {
    u8::from_ne_bytes(letter.to_ne_bytes())
}

struct ProfileInfo {
    id: c_uint,
    slices: c_uint,
    most: c_uint,
    memory: u64,
    name: String,
}

/// Every profile of the GPU, with its placements.
pub(crate) fn all(nvml: &Nvml, device: &Device, memory: Mib) -> Result<Vec<DriverProfile>, Cause> {
    let mut found = Vec::new();
    for kind in 0..MOST_KINDS {
        let info = match profile_info(nvml, device, kind, memory) {
            Ok(info) => info,
            Err(Cause::NotSupported | Cause::InvalidArg) => continue,
            Err(e) => return Err(e),
        };
        let placements = placements(nvml, device, info.id)?;
        let small = |number: c_uint| u8::try_from(number).map_err(|_| Cause::Unknown);
        let Some(first) = placements.first() else {
            continue;
        };
        let starts: Result<Vec<u8>, Cause> = placements.iter().map(|at| small(at.start)).collect();
        found.push(DriverProfile {
            id: info.id,
            profile: MigProfile {
                name: info.name,
                compute: small(info.slices)?,
                size: small(first.size)?,
                memory: Mib(info.memory),
                starts: starts?,
                most: small(info.most)?,
            },
        });
    }
    Ok(found)
}

fn profile_info(
    nvml: &Nvml,
    device: &Device,
    kind: c_uint,
    memory: Mib,
) -> Result<ProfileInfo, Cause> {
    match profile_info_v2(nvml, device, kind) {
        // Older drivers lack version 2.
        Err(e) if is_missing(&e) || matches!(e, Cause::UnexpectedVariant(VERSION_MISMATCH)) => {
            let info = profile_info_v1(nvml, device, kind)?;
            Ok(ProfileInfo {
                id: info.id,
                slices: info.sliceCount,
                most: info.instanceCount,
                memory: info.memorySizeMB,
                name: derived_name(kind, info.sliceCount, info.memorySizeMB, memory),
            })
        }
        other => other,
    }
}

fn profile_info_v2(nvml: &Nvml, device: &Device, kind: c_uint) -> Result<ProfileInfo, Cause> {
    let call = nvml_sym(nvml.lib().nvmlDeviceGetGpuInstanceProfileInfoV.as_ref())?;
    let mut info = nvmlGpuInstanceProfileInfo_v2_t {
        version: V2,
        id: 0,
        isP2pSupported: 0,
        sliceCount: 0,
        instanceCount: 0,
        multiprocessorCount: 0,
        copyEngineCount: 0,
        decoderCount: 0,
        encoderCount: 0,
        jpegCount: 0,
        ofaCount: 0,
        memorySizeMB: 0,
        name: [0; 96],
    };
    // SAFETY: the symbol has this signature; the handle is this library's; the struct has the
    // declared version and lives through the call.
    nvml_try(unsafe { call(device.handle(), kind, &raw mut info) })?;
    let bytes: Vec<u8> = info.name.iter().copied().map(byte).collect();
    let name = CStr::from_bytes_until_nul(&bytes).map_err(|_| Cause::Unknown)?;
    let name = name.to_str().map_err(|_| Cause::Unknown)?;
    Ok(ProfileInfo {
        id: info.id,
        slices: info.sliceCount,
        most: info.instanceCount,
        memory: info.memorySizeMB,
        name: name.strip_prefix("MIG ").unwrap_or(name).to_owned(),
    })
}

fn profile_info_v1(
    nvml: &Nvml,
    device: &Device,
    kind: c_uint,
) -> Result<nvmlGpuInstanceProfileInfo_t, Cause> {
    let call = nvml_sym(nvml.lib().nvmlDeviceGetGpuInstanceProfileInfo.as_ref())?;
    let mut info = nvmlGpuInstanceProfileInfo_t {
        id: 0,
        isP2pSupported: 0,
        sliceCount: 0,
        instanceCount: 0,
        multiprocessorCount: 0,
        copyEngineCount: 0,
        decoderCount: 0,
        encoderCount: 0,
        jpegCount: 0,
        ofaCount: 0,
        memorySizeMB: 0,
    };
    // SAFETY: as in `profile_info_v2`.
    nvml_try(unsafe { call(device.handle(), kind, &raw mut info) })?;
    Ok(info)
}

fn placements(
    nvml: &Nvml,
    device: &Device,
    id: c_uint,
) -> Result<Vec<nvmlGpuInstancePlacement_t>, Cause> {
    let call = &nvml.lib().nvmlDeviceGetGpuInstancePossiblePlacements_v2;
    let call = nvml_sym(call.as_ref())?;
    let none = nvmlGpuInstancePlacement_t { start: 0, size: 0 };
    let mut list = vec![none; MOST_PLACEMENTS];
    let mut count = c_uint::try_from(list.len()).map_err(|_| Cause::Unknown)?;
    // SAFETY: as in `profile_info_v2`; the list has room for as many as `count` says, and more than there
    // can be.
    nvml_try(unsafe { call(device.handle(), id, list.as_mut_ptr(), &raw mut count) })?;
    list.truncate(usize::try_from(count).map_err(|_| Cause::Unknown)?);
    list.sort_by_key(|at| at.start);
    Ok(list)
}

/// The profile's name where the driver reports none, derived as NVIDIA's own tools do: memory is
/// rounded up to eighths of the GPU's.
fn derived_name(kind: c_uint, slices: c_uint, memory: u64, gpu: Mib) -> String {
    let eighths = (memory * 8).div_ceil(gpu.0.max(1));
    let gib = gpu.0.div_ceil(1024);
    let gb = (eighths * gib + 4) / 8;
    let more = match kind {
        7 | 8 => "+me",
        10..=12 => "+gfx",
        13 | 14 => "-me",
        15 | 16 => "+me.all",
        _ => "",
    };
    format!("{slices}g.{gb}gb{more}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derives_profile_names_like_nvidia_tools() {
        let a100: &[_] = &[
            (0, 1, 4864),
            (7, 1, 4864),
            (9, 1, 9856),
            (1, 2, 9856),
            (2, 3, 19_968),
            (4, 7, 40_192),
        ];
        let nvl: &[_] = &[
            (0, 1, 10_880),
            (9, 1, 22_016),
            (2, 3, 47_232),
            (4, 7, 95_232),
        ];
        let rtx: &[_] = &[
            (0, 1, 24_064),
            (10, 1, 24_064),
            (13, 1, 24_064),
            (15, 1, 24_064),
        ];
        let of_a100 = "1g.5gb 1g.5gb+me 1g.10gb 2g.10gb 3g.20gb 7g.40gb";
        for (gpu, info, names) in [
            (40_960, a100, of_a100),
            (95_830, nvl, "1g.12gb 1g.24gb 3g.47gb 7g.94gb"),
            (97_887, rtx, "1g.24gb 1g.24gb+gfx 1g.24gb-me 1g.24gb+me.all"),
            (183_359, &[(0, 1, 22_016)], "1g.23gb"),
        ] {
            let made = info.iter();
            let made =
                made.map(|&(kind, slices, memory)| derived_name(kind, slices, memory, Mib(gpu)));
            assert_eq!(made.collect::<Vec<_>>().join(" "), names);
        }
    }
}
