//! What the node's container runtime lacks for containers to get their GPUs (MIG-14): CDI, and a CDI
//! spec that has the driver. Only what is known to be missing is reported.

pub mod config;
pub mod hook;
pub mod monitor;

use crate::gpus::inventory::{RuntimeProblem, RuntimeStatus};
use crate::node_view::NodeCondition;
use config::ContainerdConfig;

/// The first containerd with CDI, and the first that enables it by default.
const CONTAINERD: ((u32, u32), (u32, u32)) = ((1, 7), (2, 0));
/// The first CRI-O that reads CDI devices from the kubelet (`CDIDevices`).
const CRIO: (u32, u32) = (1, 28);

/// What is missing under a runtime of this version, as the kubelet reports it (`containerd://2.4.2`).
/// `read_config` reads containerd's configuration in its version, and fails with the reason;
/// `missing_spec` says why the agent has no CDI spec of the driver.
pub fn status(
    version: &str,
    read_config: impl FnOnce(Option<(u32, u32)>) -> Result<ContainerdConfig, String>,
    missing_spec: Option<String>,
) -> RuntimeStatus {
    let cdi = cdi_problem(version, read_config);
    let off = cdi.as_ref().filter(|problem| problem.blocks);
    let driver = missing_spec.map(|why| RuntimeProblem {
        reason: "DriverSpecMissing",
        blocks: true,
        text: format!(
            "the agent has no CDI spec of the driver, so no container with a share starts: {why}"
        ),
    });
    RuntimeStatus {
        without_cdi: off.map(|problem| problem.text.clone()),
        problems: cdi.into_iter().chain(driver).collect(),
    }
}

/// The name of the runtime that a Node reports, and its version as far as it is numeric.
fn runtime(version: &str) -> (&str, Option<(u32, u32)>) {
    let (name, number) = version.split_once("://").unwrap_or((version, ""));
    let mut parts = number.trim_start_matches('v').split(['.', '-', '+']);
    let mut part = || parts.next()?.parse::<u32>().ok();
    (name, part().and_then(|major| Some((major, part()?))))
}

fn cdi_problem(
    version: &str,
    read_config: impl FnOnce(Option<(u32, u32)>) -> Result<ContainerdConfig, String>,
) -> Option<RuntimeProblem> {
    let name = version.replace("://", " ");
    let problem = |blocks, reason, text: String| {
        Some(RuntimeProblem {
            reason,
            blocks,
            text,
        })
    };
    let off = |text: String| problem(true, "CdiOff", text);
    let unknown = |text: String| problem(false, "CdiUnknown", text);
    match runtime(version) {
        ("cri-o", Some(number)) if number < CRIO => off(format!(
            "{name} does not accept CDI devices from the kubelet: update to 1.28 or newer"
        )),
        ("cri-o", _) => None,
        ("containerd", Some(number)) if number < CONTAINERD.0 => off(format!(
            "{name} does not support CDI: update to 1.7 or newer"
        )),
        ("containerd", number) => {
            let is_off_by_default = number.is_some_and(|number| number < CONTAINERD.1);
            let default = format!("{name} disables CDI unless enable_cdi = true is set");
            match read_config(number) {
                Ok(config) if config.cdi == Some(false) => off(format!(
                    "CDI is disabled in {}: set enable_cdi = true there and restart {name}",
                    config.file.display()
                )),
                Ok(config) if config.cdi.is_none() && is_off_by_default => {
                    off(format!("{default} in {}", config.file.display()))
                }
                Err(why) if is_off_by_default => unknown(format!(
                    "{default}, and its configuration cannot be read: {why}; set --runtime-config to its path"
                )),
                _ => None,
            }
        }
        _ => unknown(format!(
            "{name}: it is unknown whether this runtime supports CDI devices; expected containerd 1.7 or newer, or CRI-O 1.28 or newer"
        )),
    }
}

pub fn condition(problems: &[RuntimeProblem]) -> NodeCondition {
    let Some(worst) = problems
        .iter()
        .find(|problem| problem.blocks)
        .or_else(|| problems.first())
    else {
        let words = "the container runtime is set up to give containers their GPUs";
        return NodeCondition::new(false, "RuntimeComplete", words);
    };
    let texts: Vec<&str> = problems
        .iter()
        .map(|problem| problem.text.as_str())
        .collect();
    NodeCondition::new(true, worst.reason, texts.join("; "))
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
