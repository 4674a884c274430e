//! How GPUs reach containers where nobody said it: by CDI, or, where that is known to be off, as
//! NVIDIA's container runtime takes them, if that is what starts the containers.
//!
//! Fed by: what is known of the node's container runtime, and the configuration of NVIDIA's.
//! Must not: choose a way of which it is not known that it gives containers their GPUs.

use std::fs;
use std::path::{Path, PathBuf};

use toml_edit::{DocumentMut, Item};

use super::config::{Config, below};
use super::{Class, Fault, Known, cdi, faults};
use crate::by_env::DeviceList;

/// The name of NVIDIA's runtime begins so, whichever of its modes it is for.
const PROGRAM: &str = "nvidia-container-runtime";
/// Where a program without a folder is.
const PROGRAMS: &str = "/usr/bin";
/// Its configuration: beside the program, where a container of NVIDIA's installed it, or here.
const FILE: &str = "nvidia-container-runtime/config.toml";
const USUAL: &str = "/etc";
const BESIDE: &str = ".config";
/// Keys of it, for containers that are not privileged.
const ENVIRONMENT: &str = "accept-nvidia-visible-devices-envvar-when-unprivileged";
const MOUNTS: &str = "accept-nvidia-visible-devices-as-volume-mounts";
/// The node's files, as the agent has its processes; else the agent's own.
const ROOTS: [&str; 2] = ["/proc/1/root", "/"];

/// What NVIDIA's runtime takes from a container that is not privileged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Toolkit {
    /// GPUs that its environment names.
    pub environment: bool,
    /// GPUs that its mounts name.
    pub mounts: bool,
}

/// What one look at the container runtime found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Looked {
    /// What is missing.
    pub lacks: Vec<Fault>,
    /// How containers that come now are given their GPUs; `None`: that cannot be said yet.
    pub handed: Option<DeviceList>,
    /// Why a container that was told of CDI would start silently without its GPUs and its limits,
    /// so that it is not started.
    pub without_cdi: Option<String>,
}

/// One look. What was chosen `before` without CDI holds for as long as the agent runs; while
/// nothing gives containers their GPUs, a way is looked for.
pub fn look(known: &Known<'_>, before: Option<DeviceList>, toolkit: Option<Toolkit>) -> Looked {
    let handed = match before {
        _ if !known.chosen => Some(known.handed),
        Some(DeviceList::Envvar | DeviceList::VolumeMounts) => before,
        before => choose(known, toolkit).or(before),
    };
    let off = cdi(known).filter(|fault| fault.blocks);
    let known = Known {
        handed: handed.unwrap_or_default(),
        ..known.clone()
    };
    Looked {
        lacks: faults(&known),
        handed,
        without_cdi: off.map(|fault| fault.text),
    }
}

/// How containers get their GPUs on this node; `None`: it cannot be said yet. `toolkit` is
/// NVIDIA's runtime, where that starts the containers with a share.
fn choose(known: &Known<'_>, toolkit: Option<Toolkit>) -> Option<DeviceList> {
    if cdi(known).is_none_or(|fault| !fault.blocks) {
        return Some(DeviceList::Cdi);
    }
    if *known.class == Class::Unknown {
        return None;
    }
    // Mounts first: no environment of a pod overrules them.
    Some(match toolkit {
        Some(Toolkit { mounts: true, .. }) => DeviceList::VolumeMounts,
        Some(toolkit) if toolkit.environment => DeviceList::Envvar,
        _ => DeviceList::Cdi,
    })
}

/// The program of NVIDIA's that starts containers with a share, if one of them does.
fn program(config: &Config, class: &Class) -> Option<PathBuf> {
    let handler = match class {
        Class::Usual => config.usual.as_ref()?,
        Class::There(_, handler) => handler,
        Class::Unknown | Class::Missing(_) => return None,
    };
    let program = config.programs.get(handler)?;
    let name = program.file_name()?.to_str()?;
    let program = Path::new(PROGRAMS).join(program);
    name.starts_with(PROGRAM).then_some(program)
}

/// NVIDIA's runtime, where that starts the containers with a share and its configuration can be
/// read.
pub fn toolkit(config: &Config, class: &Class) -> Option<Toolkit> {
    toolkit_below(&ROOTS.map(Path::new), config, class)
}

fn toolkit_below(roots: &[&Path], config: &Config, class: &Class) -> Option<Toolkit> {
    let program = program(config, class)?;
    let root = roots.iter().find(|root| below(root, &program).exists())?;
    let beside = program.parent()?.join(BESIDE);
    let files = [&beside, Path::new(USUAL)].map(|folder| below(root, &folder.join(FILE)));
    let Some(file) = files.iter().find(|file| file.exists()) else {
        return Some(accepts(&DocumentMut::new()));
    };
    let text = fs::read_to_string(file).ok()?;
    text.parse::<DocumentMut>().ok().as_ref().map(accepts)
}

/// What it says, or does where it says nothing.
fn accepts(document: &DocumentMut) -> Toolkit {
    let says = |key: &str| document.get(key).and_then(Item::as_bool);
    Toolkit {
        environment: says(ENVIRONMENT).unwrap_or(true),
        mounts: says(MOUNTS).unwrap_or(false),
    }
}

#[cfg(test)]
#[path = "choice_tests.rs"]
mod tests;
