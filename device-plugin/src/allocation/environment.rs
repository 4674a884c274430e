//! The environment of a container, in the names that HAMi's users know. It informs; the limits page
//! governs. It is computed from the accepted allocation alone, so that it is the same at every
//! start.

use std::collections::BTreeMap;

use aliquot_core::Grant;
use aliquot_node_state::allocate_answer::{NVIDIA_VISIBLE, VISIBLE, VOID};
use aliquot_node_state::container_directory::COUNTERS_IN_CONTAINER;
use aliquot_node_state::limits::{EffectiveLimits, UtilizationPolicy};

use crate::allocation::tenant_rights::TenantRights;
use crate::modes::ModeSetup;

const SHARED_CACHE: &str = "CUDA_DEVICE_MEMORY_SHARED_CACHE";

const POLICY: &str = "GPU_CORE_UTILIZATION_POLICY";
const OOM_KILLER: &str = "ACTIVE_OOM_KILLER";
const DISABLE_CONTROL: &str = "CUDA_DISABLE_CONTROL";

/// The node's settings that every container on it inherits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeRules {
    /// False when the administrator switched compute limits off.
    pub core_limit: bool,
    /// Kill processes of containers above their memory limit, not only report them, unless a
    /// container chooses by itself.
    pub oom_killer: bool,
    /// Which of its own limits the container may set.
    pub rights: TenantRights,
}

impl NodeRules {
    /// Containers may set all of their limits, and nobody is killed without having chosen that.
    pub const fn new(core_limit: bool) -> Self {
        let rights = TenantRights {
            set_priority: true,
            set_utilization: true,
            set_oom_killer: true,
            disable_control: true,
        };
        Self {
            core_limit,
            oom_killer: false,
            rights,
        }
    }

    /// What a container's own environment asks for, as far as the node's settings allow it. An
    /// unknown policy counts as `default`, an unknown switch as unset.
    pub fn effective_limits(
        self,
        env: &BTreeMap<String, String>,
        oversubscribe: bool,
    ) -> EffectiveLimits {
        let setting = |allowed: bool, name: &str| env.get(name).filter(|_| allowed);
        let switch =
            |allowed: bool, name: &str| setting(allowed, name).and_then(|it| parse_bool(it));
        let utilization = match (
            self.core_limit,
            setting(self.rights.set_utilization, POLICY),
        ) {
            (false, _) => UtilizationPolicy::Disable,
            (true, Some(text)) => UtilizationPolicy::parse(text),
            (true, None) => UtilizationPolicy::Default,
        };
        EffectiveLimits {
            utilization,
            oom_killer: switch(self.rights.set_oom_killer, OOM_KILLER).unwrap_or(self.oom_killer),
            oversubscribe,
            uncontrolled: switch(self.rights.disable_control, DISABLE_CONTROL).unwrap_or(false),
        }
    }
}

/// The variables of a container, as `NAME=value`, in a fixed order. Those of libvgpu.so are
/// for containers that it limits. NVIDIA's runtime must not inject the driver a second time, over the
/// shim libraries.
pub fn variables(setup: &ModeSetup, priority: u8, effective: EffectiveLimits) -> Vec<String> {
    let mut variables = setup.variables.clone();
    if setup.limited {
        variables.extend(limits(&setup.shown, priority, effective));
    }
    variables.push(format!("{NVIDIA_VISIBLE}={VOID}"));
    variables.push(format!("{VISIBLE}={}", setup.visible.join(",")));
    variables
}

fn limits(grants: &[Grant], priority: u8, effective: EffectiveLimits) -> Vec<String> {
    let cores = grants.first().map_or(0, |grant| grant.cores.0);
    let mut variables = vec![format!("CUDA_DEVICE_SM_LIMIT={cores}")];
    variables.push(format!("{SHARED_CACHE}={COUNTERS_IN_CONTAINER}"));
    if effective.oversubscribe {
        variables.push("CUDA_OVERSUBSCRIBE=true".to_owned());
    }
    variables.push(format!("CUDA_TASK_PRIORITY={priority}"));
    variables.push(format!("{POLICY}={}", effective.utilization.as_str()));
    variables.push(format!("{OOM_KILLER}={}", effective.oom_killer));
    variables
}

fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::grant;

    const NODE: NodeRules = NodeRules::new(true);

    fn effective(env: &[(&str, &str)], node: NodeRules) -> EffectiveLimits {
        let env = env
            .iter()
            .map(|&(k, v)| (k.to_owned(), v.to_owned()))
            .collect();
        node.effective_limits(&env, false)
    }

    /// What mode vgpu needs for these grants.
    fn setup(grants: &[Grant]) -> ModeSetup {
        let limit = |(i, grant): (usize, &Grant)| {
            format!("CUDA_DEVICE_MEMORY_LIMIT_{i}={}m", grant.memory.0)
        };
        ModeSetup {
            visible: grants.iter().map(|grant| grant.gpu.to_string()).collect(),
            shown: grants.to_vec(),
            variables: grants.iter().enumerate().map(limit).collect(),
            limited: true,
            ..ModeSetup::default()
        }
    }

    #[test]
    fn sets_documented_variables_for_example_pod() {
        let grants = [grant("GPU-a", 3000, 30)];
        assert_eq!(
            variables(&setup(&grants), 1, effective(&[], NODE)),
            [
                "CUDA_DEVICE_MEMORY_LIMIT_0=3000m",
                "CUDA_DEVICE_SM_LIMIT=30",
                "CUDA_DEVICE_MEMORY_SHARED_CACHE=/.aliquot/counters/slots",
                "CUDA_TASK_PRIORITY=1",
                "GPU_CORE_UTILIZATION_POLICY=default",
                "ACTIVE_OOM_KILLER=false",
                "NVIDIA_VISIBLE_DEVICES=void",
                "ALIQUOT_VISIBLE_DEVICES=GPU-a",
            ]
        );
    }

    #[test]
    fn sets_limit_per_device_in_allocation_order() {
        let scaled = EffectiveLimits {
            oversubscribe: true,
            ..effective(&[], NODE)
        };
        let grants = [grant("GPU-b", 1, 0), grant("GPU-a", 2, 0)];
        let variables = variables(&setup(&grants), 0, scaled);
        for expected in [
            "CUDA_DEVICE_MEMORY_LIMIT_0=1m",
            "CUDA_DEVICE_MEMORY_LIMIT_1=2m",
            "CUDA_OVERSUBSCRIBE=true",
            "CUDA_TASK_PRIORITY=0",
            "ALIQUOT_VISIBLE_DEVICES=GPU-b,GPU-a",
        ] {
            assert!(variables.iter().any(|v| v == expected), "{expected}");
        }
    }

    #[test]
    fn sets_only_visible_devices_without_limits() {
        let exclusive = ModeSetup {
            visible: vec!["GPU-a".to_owned()],
            ..ModeSetup::default()
        };
        let found = variables(&exclusive, 1, effective(&[], NODE));
        let visible = "ALIQUOT_VISIBLE_DEVICES=GPU-a";
        assert_eq!(found, ["NVIDIA_VISIBLE_DEVICES=void", visible]);
    }

    #[test]
    fn applies_limit_settings_of_pod_spec() {
        use UtilizationPolicy::{Default, Disable, Force};
        for (name, value, expected) in [
            ("PATH", "/bin", (Default, false, false)),
            (POLICY, "FORCE", (Force, false, false)),
            (POLICY, "disable", (Disable, false, false)),
            (POLICY, "sometimes", (Default, false, false)),
            (OOM_KILLER, "true", (Default, true, false)),
            (OOM_KILLER, "yes", (Default, false, false)),
            (DISABLE_CONTROL, "1", (Default, false, true)),
        ] {
            let found = effective(&[(name, value)], NODE);
            let found = (found.utilization, found.oom_killer, found.uncontrolled);
            assert_eq!(found, expected, "{name}={value}");
        }
    }

    #[test]
    fn hami_8_node_without_compute_limits_overrides_its_pods() {
        let without_limits = effective(&[(POLICY, "force")], NodeRules::new(false));
        assert_eq!(without_limits.utilization, UtilizationPolicy::Disable);
    }
}
