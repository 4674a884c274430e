//! Prints how much GPU capacity policies leave unallocated on a trace of openb.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "the output of a command")]

use aliquot_packing::report::{self, Summary};
use aliquot_packing::runs::{Policy, simulate};
use aliquot_packing::{SEEDS, cpu};
use anyhow::Result;
use clap::Parser;

/// Runs policies over a trace of openb, with the seeds of the published experiment
#[derive(Debug, Parser)]
struct Flags {
    /// The trace: default, cpu200, gpushare40, gpuspec10 or multigpu30
    #[arg(long, default_value = "default")]
    trace: String,
    /// So many thousandths of the default trace's pods ask for no GPU, in place of its own
    #[arg(long, conflicts_with = "trace")]
    cpu_pods: Option<usize>,
    /// Policies, separated by commas
    #[arg(long, value_delimiter = ',', required = true)]
    policy: Vec<Policy>,
}

fn main() -> Result<()> {
    let flags = Flags::parse();
    let trace = match flags.cpu_pods {
        Some(part) => cpu::mix(part, 1)?,
        None => aliquot_packing::trace(&flags.trace)?,
    };
    let seeds: Vec<u64> = SEEDS.collect();
    let outcomes = simulate(&trace, &flags.policy, &seeds)?;
    let summaries: Vec<Summary> = outcomes.iter().map(Summary::of).collect();
    print!("{}", report::table(&summaries));
    Ok(())
}
