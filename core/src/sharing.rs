//! What a container gets of a device in each sharing mode.
//!
//!
//! No mode silently gives less than what the container asked for. Other allocations are
//! checked by [`crate::node::DeviceState::refuse`].

use crate::inventory::{EvenShare, Mode};
use crate::node::{DeviceState, NodeState};
use crate::reason::Reason;
use crate::request::{GpuRequest, Memory};
use crate::rules::DeviceRules;
use crate::units::{Mib, Percent};
use crate::usage::DeviceUse;

/// The use of this device that the request leads to, and why its sharing mode cannot serve
/// the request. `alone`: the container gets no other device.
pub(crate) fn share_on(
    node: &NodeState,
    place: usize,
    request: &GpuRequest,
    rules: &DeviceRules,
    alone: bool,
) -> (DeviceUse, Option<Reason>) {
    let device = &node.devices[place];
    let (memory, cores, wrong) = match device.mode {
        Mode::Vgpu => vgpu(node, place, request),
        Mode::Exclusive => exclusive(device, request),
        Mode::Timeslice => timeslice(request, rules),
        Mode::Mps => mps(node, place, request, alone),
        // Never whole: `crate::dynamic_mig` places instances on such a GPU.
        Mode::Mig | Mode::Unknown => (device.scaled, device.cores, Some(Reason::CardModeMismatch)),
    };
    let strict = device.strict && request.count > 1;
    let wrong = if strict {
        Some(Reason::CardStrict)
    } else {
        wrong
    };
    if !rules.same_device || request.count == 1 {
        return (DeviceUse::of(memory, cores), wrong);
    }
    let all = |one: u64| one.saturating_mul(request.count.into());
    let cores = u32::try_from(all(cores.0.into())).unwrap_or(u32::MAX);
    let used = DeviceUse {
        replicas: request.count,
        ..DeviceUse::of(Mib(all(memory.0)), Percent(cores))
    };
    (used, wrong)
}

/// Memory, compute, and the reason for refusing.
type ShareOrReason = (Mib, Percent, Option<Reason>);

fn memory(request: &GpuRequest, device: &DeviceState) -> Mib {
    match request.memory {
        Memory::Mib(memory) => memory,
        Memory::Share(part) => device.scaled.share(part),
    }
}

/// What was requested; under a resource without defaults, an equal part of the device (if
/// it has one) for amounts that were not written.
fn vgpu(node: &NodeState, place: usize, request: &GpuRequest) -> ShareOrReason {
    let device = &node.devices[place];
    let asked = (memory(request, device), request.cores, None);
    if request.resource == 0 || (request.written.memory && request.written.cores) {
        return asked;
    }
    match even(node, place) {
        Some(even) => (
            if request.written.memory {
                asked.0
            } else {
                even.memory
            },
            if request.written.cores {
                asked.1
            } else {
                even.cores
            },
            None,
        ),
        None => asked,
    }
}

/// The whole device, if that is at least what was written.
fn exclusive(device: &DeviceState, request: &GpuRequest) -> ShareOrReason {
    let more = request.written.memory && memory(request, device) > device.scaled;
    let wrong = more.then_some(Reason::CardInsufficientMemory);
    (device.scaled, device.cores, wrong)
}

/// Time-slicing limits nothing, so a container that wrote an amount does not go there
/// unless its pod prefers this mode.
fn timeslice(request: &GpuRequest, rules: &DeviceRules) -> ShareOrReason {
    let written =
        request.written.memory || request.written.cores || request.cores >= Percent::WHOLE;
    let preferred = rules.modes.contains(&Mode::Timeslice);
    let wrong = (written && !preferred).then_some(Reason::CardModeMismatch);
    (Mib(0), Percent(0), wrong)
}

/// What was written, and an equal part for what was not. MPS has no compute of 0; the equal
/// part is more. A client sees the device of its daemon and no other.
fn mps(node: &NodeState, place: usize, request: &GpuRequest, alone: bool) -> ShareOrReason {
    let device = &node.devices[place];
    let whole = EvenShare {
        memory: device.scaled,
        cores: device.cores,
    };
    let even = even(node, place).unwrap_or(whole);
    let memory = if request.written.memory {
        memory(request, device)
    } else {
        even.memory
    };
    let cores = if request.written.cores && request.cores > Percent(0) {
        request.cores
    } else {
        even.cores
    };
    (memory, cores, (!alone).then_some(Reason::CardModeMismatch))
}

fn even(node: &NodeState, place: usize) -> Option<EvenShare> {
    let inventory = node.inventory.as_ref()?;
    inventory.gpus.get(place)?.even_share
}
