//! Memory limits of cgroups, from driver r615 on. The GPU must not be in MIG mode, the cgroup is
//! named by its whole path in v2 (here also in v1, where a machine has no other), and only root
//! sets limits.

use std::ffi::{c_char, c_ulonglong};

use aliquot_gpusim_model::device_nodes::may_administrate;
use aliquot_gpusim_model::memory_limits::{CgroupMemoryLimit, ROOT, UNLIMITED};
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlReturn_enum_NVML_ERROR_FUNCTION_NOT_FOUND as FUNCTION_NOT_FOUND,
    nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_RESOURCES as INSUFFICIENT_RESOURCES,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NO_PERMISSION as NO_PERMISSION,
    nvmlReturn_enum_NVML_ERROR_NOT_FOUND as NOT_FOUND,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED,
};

use super::calls;
use crate::ffi::{Answer, Out, TextIn};
use crate::library;
use crate::model::{ON, text};

/// The first driver that has them.
const FIRST: u32 = 615;

#[repr(C)]
#[derive(Clone, Copy)]
struct SetLimits {
    name_space: *const c_char,
    soft: c_ulonglong,
    hard: c_ulonglong,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct GetLimits {
    name_space: *const c_char,
    soft: c_ulonglong,
    hard: c_ulonglong,
    used: c_ulonglong,
}

calls! {
    nvmlDeviceSetMemoryLimits_v1(device: nvmlDevice_t, limits: Out<SetLimits>) {
        let index = unpartitioned_gpu(device)?;
        let requested = limits.get()?;
        let path = cgroup(requested.name_space)?;
        if requested.soft > requested.hard {
            return Err(INVALID_ARGUMENT);
        }
        if !may_administrate() {
            return Err(NO_PERMISSION);
        }
        let processes = library::cuda_processes()?;
        let member = processes.member().ok_or(NOT_SUPPORTED)?;
        let set = member.set_memory_limit(index, &path, (requested.soft, requested.hard));
        set.map_err(|_| INSUFFICIENT_RESOURCES)
    }

    nvmlDeviceGetMemoryLimits_v1(device: nvmlDevice_t, limits: Out<GetLimits>) {
        let index = unpartitioned_gpu(device)?;
        let asked = limits.get()?;
        let path = cgroup(asked.name_space)?;
        let processes = library::cuda_processes()?;
        let member = processes.member().ok_or(NOT_SUPPORTED)?;
        let found = member
            .memory_limit(index, &path)
            .unwrap_or(CgroupMemoryLimit {
                soft: 0,
                hard: UNLIMITED,
                used: 0,
            });
        limits.put(GetLimits {
            soft: found.soft,
            hard: found.hard,
            used: found.used,
            ..asked
        })
    }
}

/// The index of a GPU that may have limits.
fn unpartitioned_gpu(device: nvmlDevice_t) -> Answer<usize> {
    let found = library::device(device)?;
    let machine = library::machine()?;
    let driver = text(&machine.driver);
    let major = driver.split('.').next().and_then(|part| part.parse().ok());
    if major.is_none_or(|major: u32| major < FIRST) {
        return Err(FUNCTION_NOT_FOUND);
    }
    if found.instance.is_some() || found.gpu.mig == ON {
        return Err(NOT_SUPPORTED);
    }
    library::index(device)
}

/// The path of a cgroup that exists, below the root of its hierarchy.
fn cgroup(name: *const c_char) -> Answer<String> {
    let name = TextIn::of(name).read()?.to_owned();
    let path = name.strip_prefix(ROOT).ok_or(INVALID_ARGUMENT)?;
    let hierarchies = std::fs::read_dir(ROOT).into_iter().flatten().flatten();
    let mut places = hierarchies.map(|one| format!("{}{path}", one.path().display()));
    let exists = |place: &str| std::path::Path::new(place).is_dir();
    if exists(&name) || places.any(|place| exists(&place)) {
        return Ok(path.to_owned());
    }
    Err(NOT_FOUND)
}
