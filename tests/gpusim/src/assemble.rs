//! Builds the model from the parts of a machine file: GPUs with their model's defaults, distances,
//! links.

use aliquot_gpusim_model::mig;
use bytemuck::Zeroable as _;

use crate::catalog::{self, BRAND_NVIDIA, Model};
use crate::edit::{self, MIB};
use crate::machine_file::{Group, Link, MachineFileError, Scalar, invalid, short};
use crate::model::{
    self, ABSENT, Gpu, LINK_NONE, LINK_SWITCH, MAX_GPUS, MAX_LINKS, Machine, OFF, ON,
};

/// The memory of an empty context on GPUs of this class, in MiB.
const CONTEXT_MIB: u64 = 416;
/// The field of `gpusim set` that sets several others.
const PROFILE: &str = "profile";
const LEVEL_NODE: u32 = 40;
const LEVEL_SYSTEM: u32 = 50;

pub(crate) fn add_group(
    machine: &mut Machine,
    name: &str,
    number: usize,
    group: &Group,
    profile: Option<&str>,
) -> Result<(), MachineFileError> {
    let key = |field: &str| format!("gpus[{number}].{field}");
    let set = |gpu: &mut Gpu, field: &str, value: &str| {
        edit::set(gpu, field, value).map_err(|source| MachineFileError::Set {
            group: number,
            source,
        })
    };
    let known = catalog::find(&group.model).ok_or_else(|| MachineFileError::UnknownModel {
        group: number,
        given: group.model.clone(),
    })?;
    let first = machine.existing_gpus().len();
    let last = first + group.count;
    if group.count == 0 || last > MAX_GPUS {
        let expected = format!("at least 1, and {MAX_GPUS} in all");
        return Err(invalid(key("count"), &group.count, expected));
    }
    if !group.uuids.is_empty() && group.uuids.len() != group.count {
        let expected = format!("one for each of the {} GPUs", group.count);
        return Err(invalid(key("uuids"), &group.uuids.len(), expected));
    }
    for index in first..last {
        let uuid = group.uuids.get(index - first);
        let uuid = uuid.cloned().unwrap_or_else(|| made_uuid(name, index));
        if !uuid.starts_with("GPU-") {
            return Err(invalid(key("uuids"), &uuid, "a text that begins with GPU-"));
        }
        let twin = |gpu: &Gpu| model::text(&gpu.uuid) == uuid;
        if machine.existing_gpus().iter().any(twin) {
            return Err(invalid(key("uuids"), &uuid, "a UUID that no other GPU has"));
        }
        let mut gpu = default_gpu(known, name, index);
        gpu.uuid = short(&key("uuids"), &uuid)?;
        gpu.numa = group.numa.unwrap_or(0);
        if let Some(mib) = group.memory_mib {
            gpu.memory_total = mib.saturating_mul(MIB);
        }
        // The group's own values prevail over those of a profile.
        let own = group.set.get(PROFILE).map(Scalar::text);
        if let Some(profile) = own.as_deref().or(profile) {
            set(&mut gpu, PROFILE, profile)?;
        }
        if let Some(mib) = group.reserved_mib {
            gpu.memory_reserved = mib.saturating_mul(MIB);
        }
        if gpu.memory_reserved >= gpu.memory_total {
            let expected = format!("more than the {} MiB reserved", gpu.memory_reserved / MIB);
            return Err(invalid(
                key("memoryMib"),
                &(gpu.memory_total / MIB),
                expected,
            ));
        }
        for (field, value) in group.set.iter().filter(|(field, _)| *field != PROFILE) {
            set(&mut gpu, field, &value.text())?;
        }
        machine.gpus[index] = gpu;
        machine.gpu_count += 1;
    }
    Ok(())
}

fn default_gpu(known: &Model, name: &str, index: usize) -> Gpu {
    let position = u32::try_from(index).expect("less than MAX_GPUS");
    let (links, generation) = known.nvlink;
    let mut nvlink = [LINK_NONE; MAX_LINKS];
    nvlink[..links].fill(LINK_SWITCH);
    let (core, memory, video) = known.clocks;
    let serial = format!(
        "132{:010}",
        mig::hash(&format!("{name}/{index}")) % 10_000_000_000
    );
    Gpu {
        model: model::padded(known.name).expect("the catalogue's names are short"),
        serial: model::padded(&serial).expect("13 digits"),
        vbios: model::padded("92.00.45.00.05").expect("short"),
        memory_total: known.memory * MIB,
        memory_reserved: known.reserved * MIB,
        context_bytes: CONTEXT_MIB * MIB,
        block_bytes: 2 * MIB,
        slice_us: 2000,
        sample_ms: 170,
        bar1_total: known.bar1 * MIB,
        cpu_affinity: [u64::MAX, 0, 0, 0],
        minor: position,
        pci_bus: 0x07 + 0x08 * position,
        pci_device_id: known.device_id,
        pci_subsystem_id: known.subsystem_id,
        brand: BRAND_NVIDIA,
        architecture: known.architecture,
        capability_major: known.capability.0,
        capability_minor: known.capability.1,
        cores: known.cores,
        mig: if known.mig { OFF } else { ABSENT },
        mig_pending: if known.mig { OFF } else { ABSENT },
        ecc: ON,
        persistence: 1,
        temperature: 34,
        fan: u32::MAX,
        power: known.idle_power * 1000,
        power_limit: known.power * 1000,
        power_default_limit: known.power * 1000,
        clocks: [core / 5, core / 5, memory, video / 5],
        max_clocks: [core, core, memory, video],
        nvlink,
        nvlink_version: generation,
        pcie_generation: known.pcie,
        ..Gpu::zeroed()
    }
}

pub(crate) fn set_default_levels(machine: &mut Machine) {
    let nodes: Vec<i32> = machine.existing_gpus().iter().map(|gpu| gpu.numa).collect();
    for (a, here) in nodes.iter().enumerate() {
        for (b, there) in nodes.iter().enumerate().filter(|(b, _)| *b != a) {
            let level = if here == there {
                LEVEL_NODE
            } else {
                LEVEL_SYSTEM
            };
            machine.gpus[a].levels[b] = level;
        }
    }
}

pub(crate) fn add_link(
    machine: &mut Machine,
    number: usize,
    link: &Link,
) -> Result<(), MachineFileError> {
    let (a, b) = link.gpus;
    let count = machine.existing_gpus().len();
    if a == b || a >= count || b >= count {
        let expected = format!("two different indexes below {count}");
        return Err(invalid(
            format!("links[{number}].gpus"),
            &format!("[{a}, {b}]"),
            expected,
        ));
    }
    for (from, to) in [(a, b), (b, a)] {
        let gpu = &mut machine.gpus[from];
        if let Some(level) = link.level {
            gpu.levels[to] = level as u32;
        }
        let direct = u32::try_from(to + 1).expect("less than MAX_GPUS");
        // Unused links first, then those that lead to a switch.
        for _ in 0..link.nvlinks {
            let place = [LINK_NONE, LINK_SWITCH]
                .into_iter()
                .find_map(|kind| gpu.nvlink.iter().position(|leads| *leads == kind));
            let Some(place) = place else {
                let expected = format!("at most {MAX_LINKS} for one GPU");
                return Err(invalid(
                    format!("links[{number}].nvlinks"),
                    &link.nvlinks,
                    expected,
                ));
            };
            gpu.nvlink[place] = direct;
            gpu.nvlink_version = gpu.nvlink_version.max(1);
        }
    }
    Ok(())
}

/// A uuid that is the same at every run for this machine's name and GPU.
fn made_uuid(name: &str, index: usize) -> String {
    let uuid = mig::made_uuid(&format!("{name}#{index}"), &format!("{index}#{name}"));
    format!("GPU-{uuid}")
}
