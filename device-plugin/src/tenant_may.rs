//! What pods may say of their own limits, by namespace.
//!
//! Fed by: flags. Must not: be asked again for a container that was accepted.

/// What a container may say of its own limits in its environment.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a right of its own, given or not"
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct May {
    /// `nvidia.com/priority: 0`.
    pub set_priority: bool,
    /// `GPU_CORE_UTILIZATION_POLICY`.
    pub set_utilization: bool,
    /// `ACTIVE_OOM_KILLER`.
    pub set_oom_killer: bool,
    /// `CUDA_DISABLE_CONTROL`.
    pub disable_control: bool,
}

/// In which namespaces pods may say what of their own limits.
#[derive(Clone, Debug, clap::Args)]
pub struct TenantMay {
    /// Namespaces whose pods may have priority 0, before which those of priority 1 on the card
    /// wait; others have 1, whatever they write
    #[arg(
        long,
        env = "ALIQUOT_MAY_SET_PRIORITY",
        value_delimiter = ',',
        default_value = "*"
    )]
    pub may_set_priority: Vec<String>,
    /// Namespaces whose pods may set `GPU_CORE_UTILIZATION_POLICY`; * for all, empty for none
    #[arg(
        long,
        env = "ALIQUOT_MAY_SET_UTILIZATION",
        value_delimiter = ',',
        default_value = "*"
    )]
    pub may_set_utilization: Vec<String>,
    /// Namespaces whose pods may set `ACTIVE_OOM_KILLER`
    #[arg(
        long,
        env = "ALIQUOT_MAY_SET_OOM_KILLER",
        value_delimiter = ',',
        default_value = "*"
    )]
    pub may_set_oom_killer: Vec<String>,
    /// Namespaces whose pods may set `CUDA_DISABLE_CONTROL`, and are not limited then
    #[arg(
        long,
        env = "ALIQUOT_MAY_DISABLE_CONTROL",
        value_delimiter = ',',
        default_value = "*"
    )]
    pub may_disable_control: Vec<String>,
}

impl TenantMay {
    /// What the pods of this namespace may.
    pub fn of(&self, namespace: &str) -> May {
        let named = |names: &[String]| names.iter().any(|one| one == "*" || one == namespace);
        May {
            set_priority: named(&self.may_set_priority),
            set_utilization: named(&self.may_set_utilization),
            set_oom_killer: named(&self.may_set_oom_killer),
            disable_control: named(&self.may_disable_control),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::{Effective, NodeRules, Utilization};

    #[test]
    fn what_a_tenant_may_not_say_of_its_limits_means_nothing() {
        #[derive(clap::Parser)]
        struct Flags {
            #[command(flatten)]
            may: TenantMay,
        }
        let asked = [
            ("GPU_CORE_UTILIZATION_POLICY", "disable"),
            ("ACTIVE_OOM_KILLER", "false"),
            ("CUDA_DISABLE_CONTROL", "true"),
        ];
        let check = |flags: &[&str], namespace: &str, expected: (Utilization, bool, bool)| {
            let line = ["agent"].iter().chain(flags);
            let flags = <Flags as clap::Parser>::try_parse_from(line).expect("good flags");
            let rules = NodeRules {
                may: flags.may.of(namespace),
                ..NodeRules::new(true)
            };
            let asked = asked.map(|(k, v)| (k.to_owned(), v.to_owned()));
            let found = Effective::of(&asked.into(), rules, false);
            let found = (found.utilization, found.oom_killer, found.uncontrolled);
            assert_eq!(found, expected, "{namespace}");
        };
        let all = (Utilization::Disable, false, true);
        check(&[], "team", all);
        let none = (Utilization::Default, true, false);
        let nobody = [
            "--may-set-utilization=",
            "--may-set-oom-killer=",
            "--may-disable-control=",
        ];
        check(&nobody, "team", none);
        let one = ["--may-disable-control=ops,lab"];
        check(&one, "lab", all);
        check(&one, "team", (Utilization::Disable, false, false));
    }
}
