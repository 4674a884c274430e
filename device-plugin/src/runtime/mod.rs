//! What the node's container runtime lacks for containers to get their GPUs (MIG-14): CDI, and a CDI
//! spec that has the driver. Only what is known to be missing is reported.

pub mod config;
pub mod hook;
pub mod monitor;
pub mod toolkit;

use crate::gpus::inventory::{RuntimeProblem, RuntimeStatus};
use config::RuntimeConfig;

/// The first containerd with CDI, and the first that enables it by default.
const CONTAINERD: ((u32, u32), (u32, u32)) = ((1, 7), (2, 0));
/// The first CRI-O that reads CDI devices from the kubelet (`CDIDevices`).
const CRIO: (u32, u32) = (1, 28);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuntimeKind {
    Containerd,
    Crio,
    Other,
}

#[derive(Clone, Debug)]
pub struct RuntimeFacts<'a> {
    /// As the kubelet reports it: `containerd://2.4.2`.
    pub version: &'a str,
    /// The runtime's configuration, or why it cannot be read.
    pub config: &'a Result<RuntimeConfig, String>,
    /// How the driver gets into containers.
    pub driver: &'a DriverSources,
}

pub fn status(facts: &RuntimeFacts<'_>) -> RuntimeStatus {
    let cdi = cdi_problem(facts);
    let off = cdi.as_ref().filter(|problem| problem.blocks);
    RuntimeStatus {
        without_cdi: off.map(|problem| problem.text.clone()),
        injects_driver: facts.driver.injected,
        problems: cdi.into_iter().chain(driver_problem(facts)).collect(),
    }
}

/// How the driver gets into containers.
#[derive(Clone, Debug, Default)]
pub struct DriverSources {
    /// Why no CDI spec has it, where none has.
    pub missing: Option<String>,
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
    let off = |text: String| problem(true, "CdiOff", text);
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

/// That no CDI spec brings the driver into containers. It blocks where NVIDIA's runtime does not
/// inject the driver.
fn driver_problem(facts: &RuntimeFacts<'_>) -> Option<RuntimeProblem> {
    let DriverSources { missing, injected } = facts.driver;
    let why = missing.as_ref()?;
    let effect = if *injected {
        "containers get the driver from NVIDIA's container runtime only"
    } else {
        "no container with a share starts"
    };
    Some(RuntimeProblem {
        reason: "DriverSpecMissing",
        blocks: !injected,
        text: format!("the agent has no CDI spec of the driver, so {effect}: {why}"),
    })
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
