//! Flags that the webhook and the scheduler share: the scheduler's name, the resources' names and the
//! defaults.
//! Both must be given the same values.

use aliquot_core::request::{BareGpu, MAX_GPU_MIB, Resource};
use aliquot_core::{Defaults, Mib, Percent, ResourceNames, mig};
use clap::{Args, ValueEnum, value_parser};
use thiserror::Error;

use crate::pod::{SCHEDULER_NAME, Settings};

/// [`BareGpu`] as a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BareGpuFlag {
    /// The defaults.
    Defaults,
    /// Whole GPUs.
    Whole,
}

/// The shared flags.
#[derive(Clone, Debug, Args)]
pub struct RequestFlags {
    /// The schedulerName of pods with a share: the webhook sets it, and the scheduler admits them
    #[arg(long, env = "ALIQUOT_SCHEDULER_NAME", default_value = SCHEDULER_NAME)]
    scheduler_name: String,
    /// Memory in MiB for a container that asks for none; 0 means the whole GPU
    #[arg(long, env = "ALIQUOT_DEFAULT_MEM", default_value_t = 5000,
        value_parser = value_parser!(u64).range(0..=MAX_GPU_MIB))]
    default_mem: u64,
    /// Percent of compute for a container that asks for none
    #[arg(long, env = "ALIQUOT_DEFAULT_CORES", default_value_t = 0,
        value_parser = value_parser!(u32).range(0..=100))]
    default_cores: u32,
    /// GPUs for a container that asks for memory or compute only; 0 sets no default
    #[arg(long, env = "ALIQUOT_DEFAULT_GPU_NUM", default_value_t = 1,
        value_parser = value_parser!(u32).range(0..=64))]
    default_gpu_num: u32,
    /// Meaning of a count alone: the defaults above, or whole GPUs
    #[arg(long, env = "ALIQUOT_BARE_GPU", value_enum, default_value = "defaults")]
    bare_gpu: BareGpuFlag,

    /// Name of the resource that counts GPUs
    #[arg(long, env = "ALIQUOT_RESOURCE_NAME", default_value = "nvidia.com/gpu")]
    resource_name: String,
    /// Name of the resource for memory in MiB
    #[arg(
        long,
        env = "ALIQUOT_RESOURCE_MEM",
        default_value = "nvidia.com/gpumem"
    )]
    resource_mem: String,
    /// Name of the resource for memory in percent
    #[arg(
        long,
        env = "ALIQUOT_RESOURCE_MEM_PERCENTAGE",
        default_value = "nvidia.com/gpumem-percentage"
    )]
    resource_mem_percentage: String,
    /// Name of the resource for compute in percent
    #[arg(
        long,
        env = "ALIQUOT_RESOURCE_CORES",
        default_value = "nvidia.com/gpucores"
    )]
    resource_cores: String,
    /// Name of the resource for the priority
    #[arg(
        long,
        env = "ALIQUOT_RESOURCE_PRIORITY",
        default_value = "nvidia.com/priority"
    )]
    resource_priority: String,
    /// Names of other resources that renamed GPUs are advertised under, comma-separated;
    /// those of MIG instances (nvidia.com/mig-…) need not be listed
    #[arg(long, env = "ALIQUOT_EXTRA_RESOURCES", value_delimiter = ',')]
    extra_resources: Vec<String>,
}

/// An invalid resource name.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum FlagError {
    #[error(
        "resource name {value:?} is invalid; expected: DOMAIN/NAME of letters, digits, '-', '_', '.'"
    )]
    ResourceName { value: String },
    #[error(
        "resource name {value:?} is not unique or belongs to MIG instances; expected: unique names outside nvidia.com/mig-"
    )]
    SameName { value: String },
}

impl RequestFlags {
    /// The flags as values.
    pub fn settings(&self) -> Result<Settings, FlagError> {
        let named = [
            (Resource::Gpu, &self.resource_name),
            (Resource::Memory, &self.resource_mem),
            (Resource::MemoryPercentage, &self.resource_mem_percentage),
            (Resource::Cores, &self.resource_cores),
            (Resource::Priority, &self.resource_priority),
        ];
        let extra = self.extra_resources.iter().filter(|name| !name.is_empty());
        let usual = named.iter().map(|(_, name)| *name);
        let all: Vec<&String> = usual.chain(extra.clone()).collect();
        for (place, value) in all.iter().enumerate() {
            let value = (*value).clone();
            if !is_resource_name(&value) {
                return Err(FlagError::ResourceName { value });
            }
            if value.starts_with(mig::RESOURCES) || all[..place].contains(&&value) {
                return Err(FlagError::SameName { value });
            }
        }
        Ok(Settings {
            extra: extra.cloned().collect(),
            names: ResourceNames::with(named.map(|(resource, name)| (resource, name.clone()))),
            defaults: Defaults {
                count: self.default_gpu_num,
                memory: Mib(self.default_mem),
                cores: Percent(self.default_cores),
                bare_gpu: match self.bare_gpu {
                    BareGpuFlag::Defaults => BareGpu::Defaults,
                    BareGpuFlag::Whole => BareGpu::Whole,
                },
            },
            scheduler_name: self.scheduler_name.clone(),
        })
    }
}

fn is_resource_name(name: &str) -> bool {
    let plain = |part: &str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        !part.is_empty() && part.chars().all(allowed)
    };
    name.split_once('/')
        .is_some_and(|(domain, name)| plain(domain) && plain(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        request: RequestFlags,
    }

    fn settings(flags: &[&str]) -> Result<Settings, FlagError> {
        let program = Program::try_parse_from([&["program"], flags].concat()).unwrap();
        program.request.settings()
    }

    #[test]
    fn flag_defaults_match_the_documented_values() {
        let (flags, defaults) = (settings(&[]).unwrap(), Settings::default());
        assert_eq!(flags.names, defaults.names);
        assert_eq!(flags.defaults, defaults.defaults);
        assert_eq!(flags.scheduler_name, defaults.scheduler_name);
    }

    #[test]
    fn rejects_invalid_flags() {
        let same = settings(&["--resource-mem", "nvidia.com/gpu"]).unwrap_err();
        assert!(matches!(same, FlagError::SameName { .. }));
        for name in ["gpu", "a/b/c", "a/", "a/b\""] {
            let bad = settings(&["--resource-name", name]).unwrap_err();
            assert!(matches!(bad, FlagError::ResourceName { .. }), "{name}");
        }
        for extra in ["nvidia.com/gpu", "nvidia.com/mig-1g.5gb", "a/b,a/b"] {
            let bad = settings(&["--extra-resources", extra]).unwrap_err();
            assert!(matches!(bad, FlagError::SameName { .. }), "{extra}");
        }
        let two = settings(&["--extra-resources", "a/b,nvidia.com/gpu.shared"]);
        assert_eq!(two.unwrap().extra, ["a/b", "nvidia.com/gpu.shared"]);
        for flags in [
            ["--default-cores", "101"],
            ["--default-gpu-num", "65"],
            ["--default-mem", "1048577"],
        ] {
            assert!(Program::try_parse_from(["program", flags[0], flags[1]]).is_err());
        }
    }
}
