//! NVIDIA's container runtime: whether it starts the containers, and injects the driver into those
//! that name their GPUs in the environment. Only what is known counts.

use std::fs;
use std::path::{Path, PathBuf};

use toml_edit::{DocumentMut, Item};

use super::config::{RuntimeConfig, below};

/// The name of NVIDIA's runtime starts with this, in every mode.
const PROGRAM: &str = "nvidia-container-runtime";
/// The directory of a program without a path.
const PROGRAMS: &str = "/usr/bin";
/// Its configuration: beside the program, where NVIDIA's container installed it, or here.
const FILE: &str = "nvidia-container-runtime/config.toml";
const CONFIG_ROOT: &str = "/etc";
const BESIDE: &str = ".config";
/// Whether it reads the environment of unprivileged containers.
const ENVIRONMENT: &str = "accept-nvidia-visible-devices-envvar-when-unprivileged";
/// The node's files, through the host's processes; else the agent's own.
const ROOTS: [&str; 2] = ["/proc/1/root", "/"];

/// The runtime's handler under which pods with GPUs run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Handler {
    /// Pods have no runtime class.
    Default,
    /// That of their runtime class.
    Named(String),
    /// Their runtime class does not exist, or cannot be read.
    Unknown,
}

/// NVIDIA's program that starts the containers, if one does.
fn program(config: &RuntimeConfig, handler: &Handler) -> Option<PathBuf> {
    let handler = match handler {
        Handler::Default => config.default_handler.as_ref()?,
        Handler::Named(handler) => handler,
        Handler::Unknown => return None,
    };
    let program = config.programs.get(handler)?;
    let name = program.file_name()?.to_str()?;
    let program = Path::new(PROGRAMS).join(program);
    name.starts_with(PROGRAM).then_some(program)
}

/// Whether NVIDIA's runtime starts the containers, and injects the driver into those that name their
/// GPUs in the environment.
pub fn injects_driver(config: &RuntimeConfig, handler: &Handler) -> bool {
    reads_environment(&ROOTS.map(Path::new), config, handler).unwrap_or(false)
}

/// The same below these roots; `None`: it does not start the containers, or its configuration cannot
/// be read.
fn reads_environment(roots: &[&Path], config: &RuntimeConfig, handler: &Handler) -> Option<bool> {
    let program = program(config, handler)?;
    let root = roots.iter().find(|root| below(root, &program).exists())?;
    let beside = program.parent()?.join(BESIDE);
    let files =
        [&beside, Path::new(CONFIG_ROOT)].map(|directory| below(root, &directory.join(FILE)));
    let Some(file) = files.iter().find(|file| file.exists()) else {
        return Some(true);
    };
    let text = fs::read_to_string(file).ok()?;
    let document = text.parse::<DocumentMut>().ok()?;
    let value = document.get(ENVIRONMENT).and_then(Item::as_bool);
    Some(value.unwrap_or(true))
}

#[cfg(test)]
#[path = "toolkit_tests.rs"]
mod tests;
