//! `config plan`: what so many MPS clients of one card or instance would get, and how many
//! the peaks of those that ran suggest.
//!
//! Fed by: the command line. Must not: ask a card; the node's agent does, and its
//! figures count.

use aliquot_core::mig::{Geometry, table};
use aliquot_core::suggest::{self, Bound, Peak};
use aliquot_core::{Mib, Percent};
use aliquot_profiles::mode::Mps;
use aliquot_profiles::mps::{even, most_clients};
use clap::Args;
use thiserror::Error;

use crate::table::counted;

/// Products whose name says no memory: words of the name, MiB.
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
    /// The card, as `nvidia-smi -L` names it, such as "NVIDIA A100-SXM4-40GB"
    #[arg(long)]
    pub product: String,
    /// Clients at once
    #[arg(long, required_unless_present = "peak")]
    pub replicas: Option<u32>,
    /// What one container was seen to use at most, MiB:PERCENT of the whole card, such as
    /// 3000:20; once for each container. Says how many of the kind have room
    #[arg(long, value_name = "MIB:PERCENT", value_parser = peak)]
    pub peak: Vec<Peak>,
    /// MiB of the card, where its name does not say
    #[arg(long)]
    pub memory: Option<u64>,
    /// On one MIG instance of this profile, such as 3g.20gb, instead of the whole card
    #[arg(long)]
    pub instance: Option<String>,
}

/// Why there is no plan.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum PlanError {
    /// Nobody knows how much memory there is.
    #[error("--product {0:?}: its memory is not known; accepted: with --memory MIB")]
    Memory(String),
    /// The card cannot be cut so.
    #[error("--instance {profile:?} is no profile of {product:?}; accepted: {accepted}")]
    Profile {
        /// As it came.
        profile: String,
        /// The card.
        product: String,
        /// Its profiles.
        accepted: String,
    },
    /// More clients than a daemon serves, or none.
    #[error(
        "--replicas {replicas}: accepted: 1 to {most}, the clients that one MPS daemon serves here"
    )]
    Replicas {
        /// As it came.
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
        let (unit, memory, part) = match &self.instance {
            None => {
                let memory = self.memory.or_else(|| memory_of(&words));
                let none = || PlanError::Memory(self.product.clone());
                (self.product.clone(), memory.ok_or_else(none)?, None)
            }
            Some(name) => {
                let (memory, part) = self.instance(name)?;
                let unit = format!("{name} of {}", self.product);
                (unit, self.memory.unwrap_or(memory), Some(part))
            }
        };
        let most = most_clients(capability, part);
        let peaks = self.suggestion(Mib(memory), most);
        let Some(replicas) = self.replicas else {
            return Ok(format!("{unit}: {memory} MiB\n{peaks}"));
        };
        if !(1..=most).contains(&u64::from(replicas)) {
            return Err(PlanError::Replicas { replicas, most });
        }
        let part = even(Mib(memory), &Mps::new(replicas));
        Ok(format!(
            "{unit}: {memory} MiB\n{} of {most} at most\neach: {} MiB, {} % of the SMs\n{peaks}",
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
            return "the peaks suggest nothing: nobody used anything\n".to_owned();
        };
        let why = match found.bound {
            Bound::Memory => format!("each may need {} MiB", found.peak.memory.0),
            Bound::Compute => format!("each may need {} % of the SMs", found.peak.cores.0),
            Bound::Most => "more clients are not served".to_owned(),
        };
        let replicas = counted(found.replicas, "replica", "replicas");
        format!("the peaks suggest {replicas}: {why}\n")
    }

    /// Its memory, and its compute slices of those of the card.
    fn instance(&self, name: &str) -> Result<(u64, (u32, u32)), PlanError> {
        let geometry = table::geometry(&self.product);
        let profiles = geometry.as_ref().map_or(&[][..], |found| found.profiles());
        let found = profiles.iter().find(|profile| profile.name == name);
        let profile = found.ok_or_else(|| PlanError::Profile {
            profile: name.to_owned(),
            product: self.product.clone(),
            accepted: match profiles {
                [] => "no instance of a card without MIG".to_owned(),
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
    read().ok_or_else(|| format!("{text:?}; accepted: MIB:PERCENT, such as 3000:20"))
}

/// What the name says, such as `40GB`, or the list above.
fn memory_of(words: &[&str]) -> Option<u64> {
    let said = words
        .iter()
        .find_map(|word| word.strip_suffix("GB")?.parse::<u64>().ok());
    let listed = || MEMORY.iter().find(|(name, _)| words.contains(name));
    said.map(|gb| gb * 1024)
        .or_else(|| listed().map(|(_, mib)| *mib))
}
