//! What the node's container runtime lacks for containers to get their GPUs (MIG-14).
//!
//! Fed by: the Node's own words of its runtime, the runtime's configuration, NVIDIA's CDI specs,
//! the runtime class that pods are given. Must not: call missing what is only not known.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use aliquot_core::GpuUuid;

pub mod choice;
pub mod config;
pub mod keep;

use crate::by_env::DeviceList;
use config::Config;

/// Where a runtime reads CDI specs that is told nothing.
const USUAL_DIRECTORIES: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];
/// The first containerd with CDI, and the first that has it on by itself.
const CONTAINERD: ((u32, u32), (u32, u32)) = ((1, 7), (2, 0));
/// The first CRI-O that reads CDI devices where the kubelet names them (`CDIDevices`).
const CRIO: (u32, u32) = (1, 28);

/// Something that is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// One word for the node's condition.
    pub reason: &'static str,
    /// A container would start silently without its GPUs and its limits, so none is started.
    pub blocks: bool,
    /// What is missing and what to do, for the node's owner.
    pub text: String,
}

/// Who runs the containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// containerd.
    Containerd,
    /// CRI-O.
    Crio,
    /// Something else.
    Other,
}

/// The runtime class that pods with a share are given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Class {
    /// None: they run under the runtime's default handler.
    Usual,
    /// It is not known whether it is there.
    Unknown,
    /// The cluster has none of this name.
    Missing(String),
    /// Its name and its handler.
    There(String, String),
}

/// What is known of the node.
#[derive(Clone, Debug)]
pub struct Known<'a> {
    /// As the kubelet tells it: `containerd://2.4.2`.
    pub version: &'a str,
    /// The runtime's configuration, or why it cannot be read.
    pub config: &'a Result<Config, String>,
    /// Where our own specs go.
    pub cdi: &'a Path,
    /// Where NVIDIA's specs are looked for.
    pub directories: &'a [PathBuf],
    /// The names of the devices in NVIDIA's specs; `None`: there is no spec.
    pub devices: Option<&'a BTreeSet<String>>,
    /// The node's cards, with NVML's index.
    pub cards: &'a [(GpuUuid, u32)],
    /// The runtime class.
    pub class: &'a Class,
    /// How containers get their GPUs.
    pub handed: DeviceList,
    /// Nobody said so: the agent chose it.
    pub chosen: bool,
    /// The driver has a root of its own, whose libraries are given where there is no spec.
    pub rooted: bool,
}

/// The runtime that a Node names, and its version, as far as it is a number.
pub fn runtime(version: &str) -> (Kind, Option<(u32, u32)>) {
    let (name, number) = version.split_once("://").unwrap_or((version, ""));
    let mut parts = number.trim_start_matches('v').split(['.', '-', '+']);
    let mut part = || parts.next()?.parse::<u32>().ok();
    let number = part().and_then(|major| Some((major, part()?)));
    let kind = match name {
        "containerd" => Kind::Containerd,
        "cri-o" => Kind::Crio,
        _ => Kind::Other,
    };
    (kind, number)
}

/// All that is missing.
pub fn faults(known: &Known<'_>) -> Vec<Fault> {
    let mut faults = Vec::new();
    if known.handed == DeviceList::Cdi {
        faults.extend(cdi(known));
        faults.extend(spec_directory(known));
        faults.extend(toolkit(known));
    } else if known.chosen {
        faults.push(without(known));
    }
    faults.extend(class(known));
    faults
}

/// Whether devices of CDI reach containers.
fn cdi(known: &Known<'_>) -> Option<Fault> {
    let name = known.version.replace("://", " ");
    let fault = |blocks, reason, text: String| {
        Some(Fault {
            reason,
            blocks,
            text,
        })
    };
    let off = |text: String| fault(true, "CdiOff", text);
    let unknown = |text: String| fault(false, "CdiUnknown", text);
    let (kind, number) = runtime(known.version);
    let said = known.config.as_ref().ok().and_then(|config| config.cdi);
    match (kind, number) {
        (Kind::Other, _) => unknown(format!(
            "{name}: it is not known whether this runtime gives CDI devices to containers; accepted: containerd 1.7 or newer, CRI-O 1.28 or newer"
        )),
        (Kind::Containerd, Some(number)) if number < CONTAINERD.0 => {
            off(format!("{name} knows no CDI: update to 1.7 or newer"))
        }
        (Kind::Crio, Some(number)) if number < CRIO => off(format!(
            "{name} takes no CDI devices from the kubelet: update to 1.28 or newer"
        )),
        (Kind::Containerd, _) if said == Some(false) => off(format!(
            "CDI is off in the configuration of {name}: set enable_cdi = true and restart it"
        )),
        (Kind::Containerd, Some(number)) if number < CONTAINERD.1 && said.is_none() => {
            let text = format!("{name} has CDI off unless enable_cdi = true is set");
            match &known.config {
                Ok(_) => off(text),
                Err(why) => unknown(format!(
                    "{text}, and its configuration cannot be read: {why}; --runtime-config names it"
                )),
            }
        }
        _ => None,
    }
}

/// What follows from a way without CDI that nobody asked for.
fn without(known: &Known<'_>) -> Fault {
    let why = match cdi(known) {
        Some(fault) => fault.text,
        None => "CDI was off when the agent started, and is on now".to_owned(),
    };
    let way = known.handed.word();
    Fault {
        reason: "WithoutCdi",
        blocks: false,
        text: format!(
            "GPUs are handed to containers by {way}, by NVIDIA's container runtime, with limits that are easier to pass and without shares by MPS and instances made for a pod; {why}; then start the agent here again, or choose one way by --device-list"
        ),
    }
}

/// Whether the runtime reads our specs.
fn spec_directory(known: &Known<'_>) -> Option<Fault> {
    let config = known.config.as_ref().ok()?;
    let usual = || USUAL_DIRECTORIES.map(PathBuf::from).to_vec();
    let read = config.spec_directories.clone().unwrap_or_else(usual);
    let plain = |path: &Path| {
        let path = path
            .strip_prefix("/var/run")
            .map(|rest| Path::new("/run").join(rest));
        path.ok()
    };
    let same = |one: &PathBuf| {
        let own = plain(known.cdi).unwrap_or_else(|| known.cdi.to_owned());
        plain(one).unwrap_or_else(|| one.clone()) == own
    };
    let read_by_it = read.iter().any(same);
    (!read_by_it).then(|| Fault {
        reason: "CdiDirectory",
        blocks: false,
        text: format!(
            "the runtime reads CDI specs in {}, and the agent writes them to {}: add that to cdi_spec_dirs, or start the agent with one of those as --cdi-dir",
            listed(&read),
            known.cdi.display()
        ),
    })
}

/// Whether NVIDIA's toolkit has said how its driver gets into containers.
fn toolkit(known: &Known<'_>) -> Option<Fault> {
    if known.cards.is_empty() {
        return None;
    }
    let fault = |text| {
        let reason = "ToolkitMissing";
        Some(Fault {
            reason,
            blocks: false,
            text,
        })
    };
    let how =
        "run `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml` of NVIDIA's container toolkit";
    let Some(devices) = known.devices else {
        let places = listed(known.directories);
        let without = if known.rooted {
            "the libraries of the driver's root in the folder that they have there, where an image of another distribution does not look"
        } else {
            "not the driver's libraries"
        };
        return fault(format!(
            "no CDI spec of nvidia.com/gpu in {places}, so containers get the GPUs' device nodes and {without}: {how}"
        ));
    };
    let named = |(uuid, index): &&(GpuUuid, u32)| {
        devices.contains(uuid.as_str()) || devices.contains(&index.to_string())
    };
    let left_out = known.cards.iter().filter(|card| !named(card));
    let left_out: Vec<&str> = left_out.map(|(uuid, _)| uuid.as_str()).collect();
    if left_out.is_empty() || devices.contains("all") && known.cards.len() == left_out.len() {
        return None;
    }
    let cards = left_out.join(", ");
    fault(format!(
        "NVIDIA's CDI spec does not name {cards}: it is older than the card; {how}"
    ))
}

/// Whether pods of the runtime class can run here.
fn class(known: &Known<'_>) -> Option<Fault> {
    let text = match (known.class, known.config) {
        (Class::Missing(name), _) => format!(
            "the cluster has no RuntimeClass {name}, which pods with a share are given: make it, or take it from the webhook's and the agent's --runtime-class"
        ),
        (Class::There(name, handler), Ok(config)) if !config.handlers.contains(handler) => format!(
            "the handler {handler} of RuntimeClass {name} is not among the runtimes of the node's configuration ({}): run `nvidia-ctk runtime configure`",
            config
                .handlers
                .iter()
                .cloned()
                .collect::<Vec<_>>()
                .join(", ")
        ),
        _ => return None,
    };
    Some(Fault {
        reason: "RuntimeClassMissing",
        blocks: false,
        text,
    })
}

fn listed(paths: &[PathBuf]) -> String {
    let paths = paths.iter().map(|path| path.display().to_string());
    paths.collect::<Vec<_>>().join(", ")
}

/// Status, reason and message of the node's condition.
pub fn condition(faults: &[Fault]) -> [String; 3] {
    let Some(worst) = faults
        .iter()
        .find(|fault| fault.blocks)
        .or_else(|| faults.first())
    else {
        let words = "the container runtime gives containers their GPUs";
        return ["False", "RuntimeComplete", words].map(str::to_owned);
    };
    let texts: Vec<&str> = faults.iter().map(|fault| fault.text.as_str()).collect();
    ["True".to_owned(), worst.reason.to_owned(), texts.join("; ")]
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
