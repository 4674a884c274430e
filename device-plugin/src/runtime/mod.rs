//! What the node's container runtime lacks for containers to get their GPUs (MIG-14). Only what is
//! known to be missing is reported.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use aliquot_core::GpuUuid;

pub mod config;
pub mod hook;
pub mod monitor;
pub mod toolkit;

use crate::allocation::cdi::SpecRefusal;
use crate::allocation::nvidia_cdi::GenerateError;
use crate::gpus::inventory::{RuntimeProblem, RuntimeStatus};
use crate::kubelet::answer::DeviceListStrategy;
use config::RuntimeConfig;

/// Where a runtime reads CDI specs by default.
const DEFAULT_DIRECTORIES: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];
/// The first containerd with CDI, and the first that enables it by default.
const CONTAINERD: ((u32, u32), (u32, u32)) = ((1, 7), (2, 0));
/// The first CRI-O that reads CDI devices from the kubelet (`CDIDevices`).
const CRIO: (u32, u32) = (1, 28);

/// How an administrator makes NVIDIA's CDI spec.
const GENERATE: &str = "run `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`";

/// The container runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuntimeKind {
    /// containerd.
    Containerd,
    /// CRI-O.
    Crio,
    /// Another runtime.
    Other,
}

/// The runtime class that pods with GPUs are given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuntimeClassState {
    /// None: they run under the runtime's default handler.
    NotSet,
    /// It is unknown whether it exists.
    Unknown,
    /// The cluster has no class of this name.
    Missing(String),
    /// Its name and handler.
    Found(String, String),
}

/// The facts about the node's container runtime.
#[derive(Clone, Debug)]
pub struct RuntimeFacts<'a> {
    /// As the kubelet reports it: `containerd://2.4.2`.
    pub version: &'a str,
    /// The runtime's configuration, or why it cannot be read.
    pub config: &'a Result<RuntimeConfig, String>,
    /// Where our own CDI specs are written.
    pub cdi: &'a Path,
    /// Where NVIDIA's CDI specs are searched.
    pub directories: &'a [PathBuf],
    /// How the driver gets into containers.
    pub driver: &'a DriverSources,
    /// The runtime class.
    pub class: &'a RuntimeClassState,
    /// How containers get their GPUs.
    pub device_list: DeviceListStrategy,
}

/// Assesses the runtime.
pub fn status(facts: &RuntimeFacts<'_>) -> RuntimeStatus {
    let off = cdi_problem(facts).filter(|problem| problem.blocks);
    RuntimeStatus {
        problems: problems(facts),
        injects_driver: facts.driver.injected,
        without_cdi: off.map(|problem| problem.text),
    }
}

/// How the driver gets into containers.
#[derive(Clone, Debug, Default)]
pub struct DriverSources {
    /// The GPUs for which no CDI spec has the driver's CUDA library.
    pub without: Vec<GpuUuid>,
    /// There is a CDI spec of NVIDIA's that can be used.
    pub has_spec: bool,
    /// Why other specs are not used.
    pub refused: Vec<SpecRefusal>,
    /// Why the agent could not generate a spec.
    pub generation: Option<Arc<GenerateError>>,
    /// NVIDIA's runtime injects it.
    pub injected: bool,
}

/// The runtime that a Node names, and its version as far as it is numeric.
pub fn runtime(version: &str) -> (RuntimeKind, Option<(u32, u32)>) {
    let (name, number) = version.split_once("://").unwrap_or((version, ""));
    let mut parts = number.trim_start_matches('v').split(['.', '-', '+']);
    let mut part = || parts.next()?.parse::<u32>().ok();
    let number = part().and_then(|major| Some((major, part()?)));
    let kind = match name {
        "containerd" => RuntimeKind::Containerd,
        "cri-o" => RuntimeKind::Crio,
        _ => RuntimeKind::Other,
    };
    (kind, number)
}

/// All problems.
pub fn problems(facts: &RuntimeFacts<'_>) -> Vec<RuntimeProblem> {
    let mut problems = Vec::new();
    if facts.device_list == DeviceListStrategy::Cdi {
        problems.extend(cdi_problem(facts));
        problems.extend(spec_directory_problem(facts));
        problems.extend(driver_problems(facts));
    }
    problems.extend(class_problem(facts));
    problems
}

/// Whether CDI devices reach containers.
fn cdi_problem(facts: &RuntimeFacts<'_>) -> Option<RuntimeProblem> {
    let name = facts.version.replace("://", " ");
    let problem = |blocks, reason, text: String| {
        Some(RuntimeProblem {
            reason,
            blocks,
            text,
        })
    };
    let off = |text: String| {
        // There NVIDIA's runtime can give containers their GPUs.
        let or = if facts.driver.injected && facts.device_list == DeviceListStrategy::Cdi {
            "; or set the chart's value devicePlugin.deviceList=envvar, by which NVIDIA's container runtime gives containers their GPUs: limits are easier to bypass then, and MPS and dynamic MIG are unavailable"
        } else {
            ""
        };
        problem(true, "CdiOff", format!("{text}{or}"))
    };
    let unknown = |text: String| problem(false, "CdiUnknown", text);
    let (kind, number) = runtime(facts.version);
    let config = facts.config.as_ref().ok();
    let enabled = config.and_then(|config| config.cdi);
    let file = config.map(|config| config.file.display().to_string());
    let file = file.unwrap_or_default();
    match (kind, number) {
        (RuntimeKind::Other, _) => unknown(format!(
            "{name}: it is unknown whether this runtime supports CDI devices; expected containerd 1.7 or newer, or CRI-O 1.28 or newer"
        )),
        (RuntimeKind::Containerd, Some(number)) if number < CONTAINERD.0 => off(format!(
            "{name} does not support CDI: update to 1.7 or newer"
        )),
        (RuntimeKind::Crio, Some(number)) if number < CRIO => off(format!(
            "{name} does not accept CDI devices from the kubelet: update to 1.28 or newer"
        )),
        (RuntimeKind::Containerd, _) if enabled == Some(false) => off(format!(
            "CDI is disabled in {file}: set enable_cdi = true there and restart {name}"
        )),
        (RuntimeKind::Containerd, Some(number)) if number < CONTAINERD.1 && enabled.is_none() => {
            let text = format!("{name} disables CDI unless enable_cdi = true is set");
            match &facts.config {
                Ok(_) => off(format!("{text} in {file}")),
                Err(why) => unknown(format!(
                    "{text}, and its configuration cannot be read: {why}; set --runtime-config to its path"
                )),
            }
        }
        _ => None,
    }
}

/// Whether the runtime reads our CDI specs.
fn spec_directory_problem(facts: &RuntimeFacts<'_>) -> Option<RuntimeProblem> {
    let config = facts.config.as_ref().ok()?;
    let default = || DEFAULT_DIRECTORIES.map(PathBuf::from).to_vec();
    let read = config.spec_directories.clone().unwrap_or_else(default);
    let plain = |path: &Path| {
        let path = path
            .strip_prefix("/var/run")
            .map(|rest| Path::new("/run").join(rest));
        path.ok()
    };
    let same = |one: &PathBuf| {
        let own = plain(facts.cdi).unwrap_or_else(|| facts.cdi.to_owned());
        plain(one).unwrap_or_else(|| one.clone()) == own
    };
    let read_by_it = read.iter().any(same);
    (!read_by_it).then(|| RuntimeProblem {
        reason: "CdiDirectory",
        blocks: false,
        text: format!(
            "the runtime reads CDI specs from {}, but the agent writes them to {}: add that directory to cdi_spec_dirs, or set the agent's --cdi-dir to one that the runtime reads",
            listed(&read),
            facts.cdi.display()
        ),
    })
}

/// What is wrong with the CDI specs that bring the driver into containers. It blocks where GPUs are
/// without one and NVIDIA's runtime does not inject the driver.
fn driver_problems(facts: &RuntimeFacts<'_>) -> Vec<RuntimeProblem> {
    let driver = facts.driver;
    let blocks = !driver.without.is_empty() && !driver.injected;
    let problem = |reason, text| RuntimeProblem {
        reason,
        blocks,
        text,
    };
    let missing = missing_spec(facts).map(|text| problem("ToolkitMissing", text));
    let refused = driver.refused.iter().map(|refusal| {
        let text = format!("{refusal}: the spec is not used; {GENERATE} again, or remove it");
        problem("CdiSpecRefused", text)
    });
    missing.into_iter().chain(refused).collect()
}

/// Which GPUs are without a CDI spec that has the driver, and what follows from that.
fn missing_spec(facts: &RuntimeFacts<'_>) -> Option<String> {
    let driver = facts.driver;
    if driver.without.is_empty() {
        return None;
    }
    let gpus: Vec<&str> = driver.without.iter().map(GpuUuid::as_str).collect();
    let gpus = gpus.join(", ");
    let found = if driver.has_spec {
        format!("no CDI spec of NVIDIA's has the driver for {gpus}")
    } else {
        let places = listed(facts.directories);
        format!("no CDI spec for nvidia.com/gpu found in {places}")
    };
    let effect = if driver.injected {
        "containers get the driver from NVIDIA's container runtime only"
    } else {
        "no container with a share of these GPUs starts"
    };
    let why = driver.generation.as_ref();
    let why = why.map_or_else(String::new, |error| format!(" ({error})"));
    Some(format!(
        "{found}, so {effect}: install NVIDIA's container toolkit, with which the agent generates it{why}, or {GENERATE}"
    ))
}

/// Whether pods of the runtime class can run here.
fn class_problem(facts: &RuntimeFacts<'_>) -> Option<RuntimeProblem> {
    let text = match (facts.class, facts.config) {
        (RuntimeClassState::Missing(name), _) => format!(
            "the cluster has no RuntimeClass {name}, which pods with GPUs are given: create it, or remove it from --runtime-class of the webhook and the agent"
        ),
        (RuntimeClassState::Found(name, handler), Ok(config))
            if !config.handlers.contains(handler) =>
        {
            format!(
                "the handler {handler} of RuntimeClass {name} is not configured in the node's container runtime, which has {}: run `nvidia-ctk runtime configure`",
                config
                    .handlers
                    .iter()
                    .cloned()
                    .collect::<Vec<_>>()
                    .join(", ")
            )
        }
        _ => return None,
    };
    Some(RuntimeProblem {
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
pub fn condition(problems: &[RuntimeProblem]) -> [String; 3] {
    let Some(worst) = problems
        .iter()
        .find(|problem| problem.blocks)
        .or_else(|| problems.first())
    else {
        let words = "the container runtime is set up to give containers their GPUs";
        return ["False", "RuntimeComplete", words].map(str::to_owned);
    };
    let texts: Vec<&str> = problems
        .iter()
        .map(|problem| problem.text.as_str())
        .collect();
    ["True".to_owned(), worst.reason.to_owned(), texts.join("; ")]
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
