//! The environment a container sees, in the names HAMi's users know. It informs;
//! the limits page governs.
//!
//! Fed by: a container's grants and what its pod spec says.
//! Must not: differ between two starts of one container; it is computed from
//! the accepted share alone.

use std::collections::BTreeMap;

use aliquot_core::Grant;
use serde::{Deserialize, Serialize};

use crate::modes::Outfit;
use crate::tenant_may::May;

/// Where the seat's read-only directory is mounted.
pub const DIRECTORY: &str = "/.aliquot";
/// Where the counters file is, in the container.
pub const COUNTERS: &str = "/.aliquot/counters/slots";

/// The variable that names the container's GPUs.
pub const VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES";
/// The variable that names the counters file.
pub const SHARED_CACHE: &str = "CUDA_DEVICE_MEMORY_SHARED_CACHE";

const POLICY: &str = "GPU_CORE_UTILIZATION_POLICY";
const OOM_KILLER: &str = "ACTIVE_OOM_KILLER";
const DISABLE_CONTROL: &str = "CUDA_DISABLE_CONTROL";

/// When the compute share is enforced (`GPU_CORE_UTILIZATION_POLICY`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Utilization {
    /// Unless the pod is alone on the card.
    #[default]
    Default,
    /// Always.
    Force,
    /// Never.
    Disable,
}

impl Utilization {
    fn parse(text: &str) -> Self {
        match text.to_ascii_lowercase().as_str() {
            "force" => Self::Force,
            "disable" => Self::Disable,
            _ => Self::Default,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Force => "force",
            Self::Disable => "disable",
        }
    }
}

/// What holds for one container besides its grants. Fixed when the pod is
/// accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effective {
    /// When the compute share is enforced.
    pub utilization: Utilization,
    /// The host kills the newest grower when a container passes its memory.
    pub oom_killer: bool,
    /// More memory than a card of its has may be promised (`memoryScaling` above 1).
    pub oversubscribe: bool,
    /// The pod asked to run without limits (`CUDA_DISABLE_CONTROL`).
    pub uncontrolled: bool,
}

impl Effective {
    /// What a container's own environment asks for, under the node's settings; whether more
    /// memory than one of its cards has may be promised.
    /// An unknown policy counts as `default`, an unset OOM killer as on (HAMi's rules).
    pub fn of(env: &BTreeMap<String, String>, node: NodeRules, oversubscribe: bool) -> Self {
        let said = |may: bool, name: &str| env.get(name).filter(|_| may);
        let utilization = match (node.core_limit, said(node.may.set_utilization, POLICY)) {
            (false, _) => Utilization::Disable,
            (true, Some(text)) => Utilization::parse(text),
            (true, None) => Utilization::Default,
        };
        let killer = said(node.may.set_oom_killer, OOM_KILLER);
        let control = said(node.may.disable_control, DISABLE_CONTROL);
        Self {
            utilization,
            oom_killer: !killer.is_some_and(|text| is_false(text)),
            oversubscribe,
            uncontrolled: control.is_some_and(|text| is_true(text)),
        }
    }
}

/// The node's settings that every container on it inherits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeRules {
    /// False when the administrator switched compute limits off.
    pub core_limit: bool,
    /// What the container may say of its own limits.
    pub may: May,
}

impl NodeRules {
    /// Containers may say all of their limits.
    pub const fn new(core_limit: bool) -> Self {
        let may = May {
            set_priority: true,
            set_utilization: true,
            set_oom_killer: true,
            disable_control: true,
        };
        Self { core_limit, may }
    }
}

/// The variables of a container, as `NAME=value`, in a fixed order. Those of libvgpu.so are
/// for containers that it limits.
pub fn variables(
    outfit: &Outfit,
    grants: &[Grant],
    priority: u8,
    effective: Effective,
) -> Vec<String> {
    let mut variables = outfit.variables.clone();
    if outfit.limited {
        variables.extend(limits(grants, priority, effective));
    }
    variables.push(format!("{VISIBLE}={}", outfit.visible.join(",")));
    variables
}

fn limits(grants: &[Grant], priority: u8, effective: Effective) -> Vec<String> {
    let cores = grants.first().map_or(0, |grant| grant.cores.0);
    let mut variables = vec![format!("CUDA_DEVICE_SM_LIMIT={cores}")];
    variables.push(format!("{SHARED_CACHE}={COUNTERS}"));
    if effective.oversubscribe {
        variables.push("CUDA_OVERSUBSCRIBE=true".to_owned());
    }
    variables.push(format!("CUDA_TASK_PRIORITY={priority}"));
    variables.push(format!("{POLICY}={}", effective.utilization.as_str()));
    variables.push(format!("{OOM_KILLER}={}", effective.oom_killer));
    variables
}

fn is_true(text: &str) -> bool {
    matches!(text, "1" | "t" | "T" | "true" | "TRUE" | "True")
}

fn is_false(text: &str) -> bool {
    matches!(text, "0" | "f" | "F" | "false" | "FALSE" | "False")
}

#[cfg(test)]
mod tests {
    use aliquot_core::{Mib, Percent};

    use super::*;

    const NODE: NodeRules = NodeRules::new(true);

    fn grant(gpu: &str, memory: u64, cores: u32) -> Grant {
        Grant {
            resource: "nvidia.com/gpu".to_owned(),
            gpu: gpu.into(),
            memory: Mib(memory),
            cores: Percent(cores),
            seats: 1,
            mig: None,
        }
    }

    fn effective(env: &[(&str, &str)], node: NodeRules) -> Effective {
        let env = env
            .iter()
            .map(|&(k, v)| (k.to_owned(), v.to_owned()))
            .collect();
        Effective::of(&env, node, false)
    }

    /// What the vgpu mode makes of these grants.
    fn outfit(grants: &[Grant]) -> Outfit {
        let limit = |(i, grant): (usize, &Grant)| {
            format!("CUDA_DEVICE_MEMORY_LIMIT_{i}={}m", grant.memory.0)
        };
        Outfit {
            visible: grants.iter().map(|grant| grant.gpu.to_string()).collect(),
            variables: grants.iter().enumerate().map(limit).collect(),
            limited: true,
            ..Outfit::default()
        }
    }

    #[test]
    fn the_example_pod_gets_the_variables_its_user_expects() {
        let grants = [grant("GPU-a", 3000, 30)];
        assert_eq!(
            variables(&outfit(&grants), &grants, 1, effective(&[], NODE)),
            [
                "CUDA_DEVICE_MEMORY_LIMIT_0=3000m",
                "CUDA_DEVICE_SM_LIMIT=30",
                "CUDA_DEVICE_MEMORY_SHARED_CACHE=/.aliquot/counters/slots",
                "CUDA_TASK_PRIORITY=1",
                "GPU_CORE_UTILIZATION_POLICY=default",
                "ACTIVE_OOM_KILLER=true",
                "NVIDIA_VISIBLE_DEVICES=GPU-a",
            ]
        );
    }

    #[test]
    fn each_visible_device_has_its_own_limit_in_the_allocations_order() {
        let scaled = Effective {
            oversubscribe: true,
            ..effective(&[], NODE)
        };
        let grants = [grant("GPU-b", 1, 0), grant("GPU-a", 2, 0)];
        let variables = variables(&outfit(&grants), &grants, 0, scaled);
        for expected in [
            "CUDA_DEVICE_MEMORY_LIMIT_0=1m",
            "CUDA_DEVICE_MEMORY_LIMIT_1=2m",
            "CUDA_OVERSUBSCRIBE=true",
            "CUDA_TASK_PRIORITY=0",
            "NVIDIA_VISIBLE_DEVICES=GPU-b,GPU-a",
        ] {
            assert!(variables.iter().any(|v| v == expected), "{expected}");
        }
    }

    #[test]
    fn a_container_without_limits_is_told_its_devices_and_nothing_else() {
        let grants = [grant("GPU-a", 10_000, 100)];
        let exclusive = Outfit {
            visible: vec!["GPU-a".to_owned()],
            ..Outfit::default()
        };
        assert_eq!(
            variables(&exclusive, &grants, 1, effective(&[], NODE)),
            ["NVIDIA_VISIBLE_DEVICES=GPU-a"]
        );
    }

    #[test]
    fn what_the_pod_spec_asks_for_is_effective() {
        let check = |env: &[(&str, &str)], utilization, oom_killer, uncontrolled| {
            let found = effective(env, NODE);
            assert_eq!(
                (found.utilization, found.oom_killer, found.uncontrolled),
                (utilization, oom_killer, uncontrolled),
                "{env:?}"
            );
        };
        check(&[], Utilization::Default, true, false);
        check(&[(POLICY, "FORCE")], Utilization::Force, true, false);
        check(&[(POLICY, "disable")], Utilization::Disable, true, false);
        check(&[(POLICY, "sometimes")], Utilization::Default, true, false);
        check(&[(OOM_KILLER, "false")], Utilization::Default, false, false);
        check(&[(OOM_KILLER, "yes")], Utilization::Default, true, false);
        check(&[(DISABLE_CONTROL, "1")], Utilization::Default, true, true);
    }

    #[test]
    fn a_node_without_core_limits_overrules_the_pod() {
        let free = NodeRules::new(false);
        let found = effective(&[(POLICY, "force")], free);
        assert_eq!(found.utilization, Utilization::Disable);
    }
}
