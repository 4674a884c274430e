//! Chooses how GPUs reach containers where nobody configured it: by CDI, or, where CDI is known to
//! be disabled, through NVIDIA's container runtime if that starts the containers. A strategy is
//! chosen only if it is known to work.

use std::fs;
use std::path::{Path, PathBuf};

use toml_edit::{DocumentMut, Item};

use super::config::{RuntimeConfig, below};
use super::{RuntimeClassState, RuntimeFacts, RuntimeProblem, cdi_problem, problems};
use crate::non_cdi::DeviceListStrategy;

/// The name of NVIDIA's runtime starts with this, in every mode.
const PROGRAM: &str = "nvidia-container-runtime";
/// The directory of a program without a path.
const PROGRAMS: &str = "/usr/bin";
/// Its configuration: beside the program, where NVIDIA's container installed it, or here.
const FILE: &str = "nvidia-container-runtime/config.toml";
const CONFIG_ROOT: &str = "/etc";
const BESIDE: &str = ".config";
/// Its keys for unprivileged containers.
const ENVIRONMENT: &str = "accept-nvidia-visible-devices-envvar-when-unprivileged";
const MOUNTS: &str = "accept-nvidia-visible-devices-as-volume-mounts";
/// The node's files, through the host's processes; else the agent's own.
const ROOTS: [&str; 2] = ["/proc/1/root", "/"];

/// What NVIDIA's runtime accepts from an unprivileged container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToolkitSettings {
    /// GPUs named by its environment.
    pub environment: bool,
    /// GPUs named by its mounts.
    pub mounts: bool,
}

/// The state of the container runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeStatus {
    /// The problems found.
    pub problems: Vec<RuntimeProblem>,
    /// How new containers get their GPUs; `None` while that is unknown.
    pub device_list: Option<DeviceListStrategy>,
    /// NVIDIA's runtime starts the containers, and injects the driver into those that name their GPUs
    /// in the environment.
    pub injects_driver: bool,
    /// Why a container that relies on CDI would start silently without its GPUs and limits, and is
    /// therefore not started.
    pub without_cdi: Option<String>,
}

/// Assesses the runtime. A strategy without CDI that was chosen `before` stays for as long as the
/// agent runs; while containers get no GPUs, another strategy is searched.
pub fn assess(
    facts: &RuntimeFacts<'_>,
    before: Option<DeviceListStrategy>,
    toolkit: Option<ToolkitSettings>,
) -> RuntimeStatus {
    let strategy = match before {
        _ if !facts.chosen => Some(facts.device_list),
        Some(DeviceListStrategy::Envvar | DeviceListStrategy::VolumeMounts) => before,
        before => choose(facts, toolkit).or(before),
    };
    let off = cdi_problem(facts).filter(|problem| problem.blocks);
    let facts = RuntimeFacts {
        device_list: strategy.unwrap_or_default(),
        ..facts.clone()
    };
    RuntimeStatus {
        problems: problems(&facts),
        device_list: strategy,
        injects_driver: toolkit.is_some_and(|toolkit| toolkit.environment),
        without_cdi: off.map(|problem| problem.text),
    }
}

/// How containers get their GPUs on this node; `None` while that is unknown. `toolkit` is NVIDIA's
/// runtime, where that starts the containers.
fn choose(
    facts: &RuntimeFacts<'_>,
    toolkit: Option<ToolkitSettings>,
) -> Option<DeviceListStrategy> {
    if cdi_problem(facts).is_none_or(|problem| !problem.blocks) {
        return Some(DeviceListStrategy::Cdi);
    }
    if *facts.class == RuntimeClassState::Unknown {
        return None;
    }
    // Mounts first: a pod's environment cannot override them.
    Some(match toolkit {
        Some(ToolkitSettings { mounts: true, .. }) => DeviceListStrategy::VolumeMounts,
        Some(toolkit) if toolkit.environment => DeviceListStrategy::Envvar,
        _ => DeviceListStrategy::Cdi,
    })
}

/// NVIDIA's program that starts the containers, if one does.
fn program(config: &RuntimeConfig, class: &RuntimeClassState) -> Option<PathBuf> {
    let handler = match class {
        RuntimeClassState::NotSet => config.default_handler.as_ref()?,
        RuntimeClassState::Found(_, handler) => handler,
        RuntimeClassState::Unknown | RuntimeClassState::Missing(_) => return None,
    };
    let program = config.programs.get(handler)?;
    let name = program.file_name()?.to_str()?;
    let program = Path::new(PROGRAMS).join(program);
    name.starts_with(PROGRAM).then_some(program)
}

/// The settings of NVIDIA's runtime, where that starts the containers and its configuration can be
/// read.
pub fn toolkit(config: &RuntimeConfig, class: &RuntimeClassState) -> Option<ToolkitSettings> {
    toolkit_below(&ROOTS.map(Path::new), config, class)
}

fn toolkit_below(
    roots: &[&Path],
    config: &RuntimeConfig,
    class: &RuntimeClassState,
) -> Option<ToolkitSettings> {
    let program = program(config, class)?;
    let root = roots.iter().find(|root| below(root, &program).exists())?;
    let beside = program.parent()?.join(BESIDE);
    let files =
        [&beside, Path::new(CONFIG_ROOT)].map(|directory| below(root, &directory.join(FILE)));
    let Some(file) = files.iter().find(|file| file.exists()) else {
        return Some(accepts(&DocumentMut::new()));
    };
    let text = fs::read_to_string(file).ok()?;
    text.parse::<DocumentMut>().ok().as_ref().map(accepts)
}

/// Its settings, with its defaults.
fn accepts(document: &DocumentMut) -> ToolkitSettings {
    let value = |key: &str| document.get(key).and_then(Item::as_bool);
    ToolkitSettings {
        environment: value(ENVIRONMENT).unwrap_or(true),
        mounts: value(MOUNTS).unwrap_or(false),
    }
}

#[cfg(test)]
#[path = "device_list_tests.rs"]
mod tests;
