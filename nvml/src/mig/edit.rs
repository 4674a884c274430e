//! Changes of a card's cut: a step that fails after another was done undoes that one.
//! Fed by a profile's name and a start, or the driver's id of an instance.

use std::ffi::c_uint;

use aliquot_core::Mib;
use nvml_wrapper::error::{NvmlError as Cause, nvml_sym, nvml_try};
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{
    nvmlComputeInstance_t, nvmlGpuInstance_t, nvmlGpuInstancePlacement_t,
    nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_RESOURCES as NO_ROOM,
    nvmlReturn_enum_NVML_SUCCESS as SUCCESS, nvmlReturn_t,
};

use super::profiles::{self, Known};
use super::{Activation, Instance, MigError, read};

/// Switches MIG.
pub(crate) fn switch(
    nvml: &Nvml,
    device: &Device,
    card: &str,
    on: bool,
) -> Result<Activation, MigError> {
    let step = || {
        let call = nvml_sym(nvml.lib().nvmlDeviceSetMigMode.as_ref())?;
        let mut activation: nvmlReturn_t = SUCCESS;
        // SAFETY: the symbol has this signature; the handle is this library's; the place for the
        // answer lives through the call.
        nvml_try(unsafe { call(device.handle(), u32::from(on), &raw mut activation) })?;
        Ok(match activation {
            SUCCESS => Activation::Now,
            _ => Activation::AtReset,
        })
    };
    step().map_err(|source| MigError::Switch {
        card: card.to_owned(),
        on,
        source,
    })
}

/// Makes a GPU instance at a place, with one compute instance that has all of it. When the second
/// fails, the first is ended again.
pub(crate) fn create(
    nvml: &Nvml,
    device: &Device,
    (card, memory): (&str, Mib),
    profile: &str,
    start: u8,
) -> Result<Instance, MigError> {
    let known = profiles::all(nvml, device, memory).map_err(|source| MigError::Profiles {
        card: card.to_owned(),
        source,
    })?;
    let Some(one) = known.iter().find(|one| one.profile.name == profile) else {
        return Err(MigError::NoProfile {
            card: card.to_owned(),
            profile: profile.to_owned(),
            known: known.into_iter().map(|one| one.profile.name).collect(),
        });
    };
    let outer = create_outer(nvml, device, one, start).map_err(|source| {
        let (card, profile) = (card.to_owned(), profile.to_owned());
        match source {
            Cause::UnexpectedVariant(NO_ROOM) => MigError::NoRoom {
                card,
                profile,
                start,
            },
            source => MigError::Create {
                card,
                profile,
                start,
                source,
            },
        }
    })?;
    let made = create_inner(nvml, outer, one).and_then(|()| read::instance(nvml, outer, one));
    made.map_err(|source| {
        let left = end_all(nvml, outer).and_then(|()| end_outer(nvml, outer));
        MigError::Compute {
            card: card.to_owned(),
            profile: profile.to_owned(),
            start,
            source,
            left: left.err().map(Box::new),
        }
    })
}

fn create_outer(
    nvml: &Nvml,
    device: &Device,
    known: &Known,
    start: u8,
) -> Result<nvmlGpuInstance_t, Cause> {
    let call = nvml_sym(nvml.lib().nvmlDeviceCreateGpuInstanceWithPlacement.as_ref())?;
    let place = nvmlGpuInstancePlacement_t {
        start: start.into(),
        size: known.profile.size.into(),
    };
    let mut made = std::ptr::null_mut();
    // SAFETY: as in `switch`; the placement lives through the call too.
    nvml_try(unsafe { call(device.handle(), known.id, &raw const place, &raw mut made) })?;
    Ok(made)
}

fn create_inner(nvml: &Nvml, outer: nvmlGpuInstance_t, known: &Known) -> Result<(), Cause> {
    let all = read::compute_profiles(nvml, outer)?.into_iter();
    let wanted = c_uint::from(known.profile.compute);
    let mut fitting = all.filter(|(_, slices)| *slices == wanted);
    let (id, _) = fitting.next().ok_or(Cause::NotSupported)?;
    let call = nvml_sym(nvml.lib().nvmlGpuInstanceCreateComputeInstance.as_ref())?;
    let mut made = std::ptr::null_mut();
    // SAFETY: as in `switch`; the instance was just made.
    nvml_try(unsafe { call(outer, id, &raw mut made) })
}

/// Ends a GPU instance and what is in it.
pub(crate) fn destroy(nvml: &Nvml, device: &Device, card: &str, id: u32) -> Result<(), MigError> {
    let outer = match by_id(nvml, device, id) {
        Ok(outer) => outer,
        Err(Cause::NotFound) => {
            let card = card.to_owned();
            return Err(MigError::NoInstance { card, id });
        }
        Err(source) => {
            let card = card.to_owned();
            return Err(MigError::Instances { card, source });
        }
    };
    end_all(nvml, outer).map_err(|source| MigError::EndCompute {
        card: card.to_owned(),
        inside: id,
        source,
    })?;
    end_outer(nvml, outer).map_err(|source| MigError::End {
        card: card.to_owned(),
        id,
        source,
    })
}

fn by_id(nvml: &Nvml, device: &Device, id: u32) -> Result<nvmlGpuInstance_t, Cause> {
    let call = nvml_sym(nvml.lib().nvmlDeviceGetGpuInstanceById.as_ref())?;
    let mut found = std::ptr::null_mut();
    // SAFETY: as in `switch`.
    nvml_try(unsafe { call(device.handle(), id, &raw mut found) })?;
    Ok(found)
}

/// Ends every compute instance of a GPU instance.
fn end_all(nvml: &Nvml, outer: nvmlGpuInstance_t) -> Result<(), Cause> {
    for (id, _) in read::compute_profiles(nvml, outer)? {
        for one in read::compute_instances(nvml, outer, id)? {
            end_inner(nvml, one)?;
        }
    }
    Ok(())
}

fn end_inner(nvml: &Nvml, inner: nvmlComputeInstance_t) -> Result<(), Cause> {
    let call = nvml_sym(nvml.lib().nvmlComputeInstanceDestroy.as_ref())?;
    // SAFETY: as in `switch`; the handle was just read.
    nvml_try(unsafe { call(inner) })
}

fn end_outer(nvml: &Nvml, outer: nvmlGpuInstance_t) -> Result<(), Cause> {
    let call = nvml_sym(nvml.lib().nvmlGpuInstanceDestroy.as_ref())?;
    // SAFETY: as in `switch`; the handle was just read or made.
    nvml_try(unsafe { call(outer) })
}
