//! Which of their own limits pods may set, by namespace. Applies when a pod is accepted.

/// Which of its own limits a container may set.
#[expect(clippy::struct_excessive_bools, reason = "independent rights")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantRights {
    /// `nvidia.com/priority: 0`.
    pub set_priority: bool,
    /// `GPU_CORE_UTILIZATION_POLICY`.
    pub set_utilization: bool,
    /// `ACTIVE_OOM_KILLER`.
    pub set_oom_killer: bool,
    /// `CUDA_DISABLE_CONTROL`.
    pub disable_control: bool,
}

/// The namespaces whose pods may set their own limits.
#[derive(Clone, Debug, clap::Args)]
pub struct NamespaceRights {
    /// Namespaces whose pods may have priority 0, for which pods of priority 1 on the same GPU
    /// wait; others always have 1
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
    /// Namespaces whose pods may set `CUDA_DISABLE_CONTROL`, and are not limited then; none by
    /// default
    #[arg(
        long,
        env = "ALIQUOT_MAY_DISABLE_CONTROL",
        value_delimiter = ',',
        default_value = ""
    )]
    pub may_disable_control: Vec<String>,
}

impl NamespaceRights {
    pub fn of(&self, namespace: &str) -> TenantRights {
        let named = |names: &[String]| names.iter().any(|one| one == "*" || one == namespace);
        TenantRights {
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
    use crate::allocation::environment::NodeRules;
    use aliquot_node_state::limits::UtilizationPolicy;

    #[test]
    fn ignores_limit_settings_without_the_right() {
        #[derive(clap::Parser)]
        struct Flags {
            #[command(flatten)]
            may: NamespaceRights,
        }
        let requested = [
            ("GPU_CORE_UTILIZATION_POLICY", "disable"),
            ("ACTIVE_OOM_KILLER", "false"),
            ("CUDA_DISABLE_CONTROL", "true"),
        ];
        let check = |flags: &[&str], namespace: &str, expected: (UtilizationPolicy, bool, bool)| {
            let line = ["agent"].iter().chain(flags);
            let flags = <Flags as clap::Parser>::try_parse_from(line).expect("good flags");
            let rules = NodeRules {
                oom_killer: true,
                rights: flags.may.of(namespace),
                ..NodeRules::new(true)
            };
            let requested = requested.map(|(k, v)| (k.to_owned(), v.to_owned()));
            let found = rules.effective_limits(&requested.into(), false);
            let found = (found.utilization, found.oom_killer, found.uncontrolled);
            assert_eq!(found, expected, "{namespace}");
        };
        let all = (UtilizationPolicy::Disable, false, true);
        let usual = (UtilizationPolicy::Disable, false, false);
        let none = (UtilizationPolicy::Default, true, false);
        let nobody = [
            "--may-set-utilization=",
            "--may-set-oom-killer=",
            "--may-disable-control=",
        ];
        let one = ["--may-disable-control=ops,lab"];
        check(&[], "team", usual);
        check(&["--may-disable-control=*"], "team", all);
        check(&nobody, "team", none);
        check(&one, "lab", all);
        check(&one, "team", usual);
    }
}
