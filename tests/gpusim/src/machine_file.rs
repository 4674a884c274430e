//! The YAML form of a machine, and the machine that it describes: GPUs with their model's defaults,
//! distances, links. Every key is checked; the error for an unknown key names it.

use std::collections::BTreeMap;
use std::fmt::Display;

use aliquot_gpusim_model::mig;
use bytemuck::Zeroable as _;
use serde::Deserialize;

use crate::catalog::{self, Model};
use crate::edit::{self, MIB};
use crate::machine::MachineError;
use crate::model::{self, ABSENT, Gpu, LINK_NONE, LINK_SWITCH, MAX_GPUS, MAX_LINKS, Machine, OFF};

/// The memory of an empty context on GPUs of this class, in MiB.
const CONTEXT_MIB: u64 = 416;
/// The field that sets several others.
const PROFILE: &str = "profile";
const LEVEL_NODE: u32 = 40;
const LEVEL_SYSTEM: u32 = 50;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct MachineFile {
    /// Makes UUIDs and serial numbers differ between machines.
    #[serde(default)]
    name: String,
    #[serde(default = "default_driver")]
    driver: String,
    #[serde(default = "default_cuda")]
    cuda: String,
    /// The node's folder of device nodes; without it the environment of a process stands for them.
    #[serde(default)]
    dev: String,
    gpus: Vec<Group>,
    #[serde(default)]
    links: Vec<Link>,
}

/// `count` identical GPUs.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Group {
    #[serde(default = "one")]
    count: usize,
    model: String,
    /// One for each GPU; default: made from the machine's name and the index.
    #[serde(default)]
    uuids: Vec<String>,
    /// NUMA node; default 0.
    numa: Option<i32>,
    memory_mib: Option<u64>,
    reserved_mib: Option<u64>,
    /// Initial values of the fields of [`edit::set`].
    #[serde(default)]
    set: BTreeMap<String, Scalar>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Scalar {
    /// YAML's value of `on` and `off`.
    Switch(bool),
    Number(i64),
    Text(String),
}

impl Scalar {
    /// As [`edit::set`] takes it.
    fn text(&self) -> String {
        match self {
            Self::Switch(on) => if *on { "on" } else { "off" }.to_owned(),
            Self::Number(number) => number.to_string(),
            Self::Text(text) => text.clone(),
        }
    }
}

/// A pair of GPUs that are joined directly.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Link {
    gpus: (usize, usize),
    /// They replace links to switches.
    nvlinks: usize,
}

fn default_driver() -> String {
    "580.82.07".to_owned()
}

fn default_cuda() -> String {
    "13.0".to_owned()
}

fn one() -> usize {
    1
}

fn model_names() -> String {
    let names: Vec<_> = catalog::MODELS.iter().map(|model| model.name).collect();
    format!("one of: {}", names.join(", "))
}

fn invalid(field: &str, value: &dyn Display, expected: &str) -> MachineError {
    let error = format!("{field}: {value} is invalid; expected: {expected}");
    MachineError(error)
}

/// The machine that a YAML text describes. GPUs for which it names no profile get `profile`.
pub(crate) fn parse(yaml: &str, profile: Option<&str>) -> Result<Box<Machine>, MachineError> {
    let file: MachineFile = serde_saphyr::from_str(yaml)
        .map_err(|error| MachineError(format!("machine file: {error}")))?;
    let mut machine: Box<Machine> = bytemuck::allocation::zeroed_box();
    machine.driver = short("driver", &file.driver)?;
    machine.cuda = cuda_number(&file.cuda)?;
    machine.dev = short("dev", &file.dev)?;
    machine.next_xid = 1;

    for (number, group) in file.gpus.iter().enumerate() {
        add_group(&mut machine, &file.name, number, group, profile)?;
    }
    set_default_levels(&mut machine);
    for link in &file.links {
        add_link(&mut machine, link)?;
    }
    Ok(machine)
}

fn short<const N: usize>(field: &str, value: &str) -> Result<[u8; N], MachineError> {
    model::padded(value)
        .ok_or_else(|| invalid(field, &value, &format!("text of less than {N} bytes")))
}

fn cuda_number(text: &str) -> Result<u32, MachineError> {
    let parts = text.split_once('.');
    let numbers = parts.and_then(|(a, b)| Some((a.parse::<u16>().ok()?, b.parse::<u8>().ok()?)));
    match numbers {
        Some((major, minor)) if minor < 100 => Ok(1000 * u32::from(major) + 10 * u32::from(minor)),
        _ => Err(invalid(
            "cuda",
            &text,
            "major.minor, quoted, such as \"13.0\"",
        )),
    }
}

fn add_group(
    machine: &mut Machine,
    name: &str,
    number: usize,
    group: &Group,
    profile: Option<&str>,
) -> Result<(), MachineError> {
    let key = |field: &str| format!("gpus[{number}].{field}");
    let set = |gpu: &mut Gpu, field: &str, value: &str| {
        edit::set(gpu, field, value)
            .map_err(|error| MachineError(format!("gpus[{number}].set: {error}")))
    };
    let unknown = || invalid(&key("model"), &group.model, &model_names());
    let known = catalog::find(&group.model).ok_or_else(unknown)?;
    let first = machine.existing_gpus().len();
    let last = first + group.count;
    if group.count == 0 || last > MAX_GPUS {
        let expected = format!("at least 1, and {MAX_GPUS} in all");
        return Err(invalid(&key("count"), &group.count, &expected));
    }
    if !group.uuids.is_empty() && group.uuids.len() != group.count {
        let expected = format!("one for each of the {} GPUs", group.count);
        return Err(invalid(&key("uuids"), &group.uuids.len(), &expected));
    }
    for index in first..last {
        let uuid = group.uuids.get(index - first);
        let uuid = uuid.cloned().unwrap_or_else(|| made_uuid(name, index));
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
            let memory = gpu.memory_total / MIB;
            return Err(invalid(&key("memoryMib"), &memory, &expected));
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
    let mut nvlink = [LINK_NONE; MAX_LINKS];
    nvlink[..known.nvlink].fill(LINK_SWITCH);
    let (core, memory, video) = known.clocks;
    let serial = format!(
        "132{:010}",
        mig::hash(&format!("{name}/{index}")) % 10_000_000_000
    );
    Gpu {
        model: model::padded(known.name).expect("the catalogue's names are short"),
        serial: model::padded(&serial).expect("13 digits"),
        memory_total: known.memory * MIB,
        memory_reserved: known.reserved * MIB,
        context_bytes: CONTEXT_MIB * MIB,
        minor: position,
        pci_bus: 0x07 + 0x08 * position,
        pci_device_id: known.device_id,
        architecture: known.architecture,
        capability_major: known.capability.0,
        capability_minor: known.capability.1,
        cores: known.cores,
        mig: if known.mig { OFF } else { ABSENT },
        mig_pending: if known.mig { OFF } else { ABSENT },
        temperature: 34,
        power: known.idle_power * 1000,
        clocks: [core / 5, core / 5, memory, video / 5],
        max_clocks: [core, core, memory, video],
        nvlink,
        ..Gpu::zeroed()
    }
}

fn set_default_levels(machine: &mut Machine) {
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

fn add_link(machine: &mut Machine, link: &Link) -> Result<(), MachineError> {
    let (a, b) = link.gpus;
    let count = machine.existing_gpus().len();
    if a == b || a >= count || b >= count {
        let expected = format!("two different indexes below {count}");
        let given = format!("[{a}, {b}]");
        return Err(invalid("links", &given, &expected));
    }
    for (from, to) in [(a, b), (b, a)] {
        let nvlink = &mut machine.gpus[from].nvlink;
        let direct = u32::try_from(to + 1).expect("less than MAX_GPUS");
        // Unused links first, then those that lead to a switch.
        for _ in 0..link.nvlinks {
            let place = [LINK_NONE, LINK_SWITCH]
                .into_iter()
                .find_map(|kind| nvlink.iter().position(|leads| *leads == kind));
            let expected = format!("at most {MAX_LINKS} for one GPU");
            let full = || invalid("nvlinks", &link.nvlinks, &expected);
            nvlink[place.ok_or_else(full)?] = direct;
        }
    }
    Ok(())
}

/// A uuid that is the same at every run for this machine's name and GPU.
fn made_uuid(name: &str, index: usize) -> String {
    let uuid = mig::made_uuid(&format!("{name}#{index}"), &format!("{index}#{name}"));
    format!("GPU-{uuid}")
}
