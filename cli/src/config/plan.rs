//! `config plan`: what each of a number of MPS clients would get of one GPU or MIG instance, and how
//! many replicas measured peaks suggest. An estimate by product name; the node's agent reads the GPU.

use aliquot_core::mig::{Geometry, table};
use aliquot_core::suggest::{self, Bound, Peak};
use aliquot_core::{Mib, Percent};
use aliquot_profiles::mode::Mps;
use aliquot_profiles::mps::{even_share, max_clients};
use clap::Args;
use thiserror::Error;

use crate::table::counted;

/// Products whose names do not contain the memory: a word of the name, MiB.
const MEMORY: [(&str, u64); 8] = [
    ("T4", 15_360),
    ("L4", 23_034),
    ("L40S", 46_068),
    ("L40", 46_068),
    ("A10", 23_028),
    ("A30", 24_576),
    ("A40", 46_068),
    ("H200", 143_771),
];
/// Products before compute capability 7.0, whose MPS serves fewer clients.
const OLD: [&str; 6] = ["K80", "M40", "M60", "P4", "P40", "P100"];

/// The flags of `config plan`.
#[derive(Debug, Args)]
pub struct Plan {
    /// The GPU's product name from `nvidia-smi -L`, such as "NVIDIA A100-SXM4-40GB"
    #[arg(long)]
    pub product: String,
    /// Number of clients at the same time
    #[arg(long, required_unless_present = "peak")]
    pub replicas: Option<u32>,
    /// Peak use of one container, MiB:PERCENT of the whole GPU, such as 3000:20; repeatable,
    /// one for each container. Prints how many such containers fit
    #[arg(long, value_name = "MIB:PERCENT", value_parser = peak)]
    pub peak: Vec<Peak>,
    /// Memory of the GPU in MiB, where its name does not contain it
    #[arg(long)]
    pub memory: Option<u64>,
    /// Use one MIG instance of this profile, such as 3g.20gb, instead of the whole GPU
    #[arg(long)]
    pub instance: Option<String>,
}

/// Why there is no plan.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum PlanError {
    /// The product's memory is not known.
    #[error(
        "--product {0:?}: the memory of this GPU is not known; expected: --memory MIB in addition"
    )]
    Memory(String),
    /// The GPU has no such MIG profile.
    #[error("--instance {profile:?} is not a MIG profile of {product:?}; expected: {expected}")]
    Profile {
        /// The flag's value.
        profile: String,
        /// The GPU.
        product: String,
        /// Its profiles.
        expected: String,
    },
    /// More clients than a daemon serves, or none.
    #[error(
        "--replicas {replicas}; expected: 1 to {most}, the clients that one MPS daemon serves on this device"
    )]
    Replicas {
        /// The flag's value.
        replicas: u32,
        /// The maximum.
        most: u64,
    },
}

impl Plan {
    /// The plan as lines.
    pub fn run(&self) -> Result<String, PlanError> {
        let words: Vec<&str> = self.product.split([' ', '-']).collect();
        let old = words.iter().any(|word| OLD.contains(word));
        let capability = old.then_some((6, 0));
        let (device, memory, part) = match &self.instance {
            None => {
                let memory = self.memory.or_else(|| memory_of(&words));
                let none = || PlanError::Memory(self.product.clone());
                (self.product.clone(), memory.ok_or_else(none)?, None)
            }
            Some(name) => {
                let (memory, part) = self.instance(name)?;
                let device = format!("{name} of {}", self.product);
                (device, self.memory.unwrap_or(memory), Some(part))
            }
        };
        let most = max_clients(capability, part);
        let peaks = self.suggestion(Mib(memory), most);
        let Some(replicas) = self.replicas else {
            return Ok(format!("{device}: {memory} MiB\n{peaks}"));
        };
        if !(1..=most).contains(&u64::from(replicas)) {
            return Err(PlanError::Replicas { replicas, most });
        }
        let part = even_share(Mib(memory), &Mps::new(replicas));
        Ok(format!(
            "{device}: {memory} MiB\n{} of {most} at most\neach: {} MiB, {} % of the SMs\n{peaks}",
            counted(replicas, "client", "clients"),
            part.memory.0,
            part.cores.0
        ))
    }

    /// A line for the peaks, if there are any.
    fn suggestion(&self, memory: Mib, most: u64) -> String {
        if self.peak.is_empty() {
            return String::new();
        }
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        let Some(found) = suggest::replicas(memory, most, &self.peak) else {
            return "the peaks suggest nothing, because none is above 0\n".to_owned();
        };
        let why = match found.bound {
            Bound::Memory => format!("each may need {} MiB", found.peak.memory.0),
            Bound::Compute => format!("each may need {} % of the SMs", found.peak.cores.0),
            Bound::ModeLimit => "one MPS daemon does not serve more clients".to_owned(),
        };
        let replicas = counted(found.replicas, "replica", "replicas");
        format!("the peaks suggest {replicas}: {why}\n")
    }

    /// The instance's memory, and its compute slices out of the GPU's.
    fn instance(&self, name: &str) -> Result<(u64, (u32, u32)), PlanError> {
        let geometry = table::geometry(&self.product);
        let profiles = geometry.as_ref().map_or(&[][..], |found| found.profiles());
        let found = profiles.iter().find(|profile| profile.name == name);
        let profile = found.ok_or_else(|| PlanError::Profile {
            profile: name.to_owned(),
            product: self.product.clone(),
            expected: match profiles {
                [] => "no --instance, for this GPU does not support MIG".to_owned(),
                some => {
                    let names: Vec<&str> = some.iter().map(|p| p.name.as_str()).collect();
                    names.join(", ")
                }
            },
        })?;
        let all = geometry.as_ref().map_or(profile.compute, Geometry::compute);
        Ok((profile.memory.0, (profile.compute.into(), all.into())))
    }
}

/// Reads `MIB:PERCENT`.
fn peak(text: &str) -> Result<Peak, String> {
    let read = || {
        let (memory, cores) = text.split_once(':')?;
        let cores = cores.parse().ok().filter(|cores| *cores <= 100)?;
        Some(Peak {
            memory: Mib(memory.parse().ok()?),
            cores: Percent(cores),
        })
    };
    read().ok_or_else(|| format!("{text:?}; expected: MIB:PERCENT, such as 3000:20"))
}

/// The memory by the name, such as `40GB`, or by the list above.
fn memory_of(words: &[&str]) -> Option<u64> {
    let in_name = words
        .iter()
        .find_map(|word| word.strip_suffix("GB")?.parse::<u64>().ok());
    let listed = || MEMORY.iter().find(|(name, _)| words.contains(name));
    in_name
        .map(|gb| gb * 1024)
        .or_else(|| listed().map(|(_, mib)| *mib))
}
