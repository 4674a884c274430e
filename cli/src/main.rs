//! `kubectl-aliquot`: see the library for what it does.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "the output of a command")]
#![allow(clippy::print_stderr, reason = "progress beside the output")]

use std::time::{Duration, Instant};

use aliquot_cli::plot;
use aliquot_cli::report::{self, Summary};
use aliquot_cli::simulate::{Simulate, simulate};
use aliquot_cli::trace::Trace;
use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};
use serde_json::json;

/// A run that takes less says nothing of its progress.
const QUIET: Duration = Duration::from_secs(2);

/// Asks Aliquot, or tries its policies.
#[derive(Debug, Parser)]
#[command(name = "kubectl-aliquot", version)]
struct Program {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Drive policies over a trace of pods and say how full the GPUs get
    Simulate(Simulate),
}

fn main() -> Result<()> {
    match Program::parse().command {
        Command::Simulate(flags) => run(&flags),
    }
}

fn run(flags: &Simulate) -> Result<()> {
    let trace = Trace::read(&flags.nodes, &flags.pods)?;
    let start = Instant::now();
    let progress = |done: usize, all: usize| {
        if start.elapsed() > QUIET {
            eprint!("\r{done} of {all} runs");
            if done == all {
                eprintln!();
            }
        }
    };
    let outcomes = simulate(&trace, &flags.policy, &flags.seeds.0, flags.load, &progress)?;
    let summaries: Vec<Summary> = outcomes.iter().map(Summary::of).collect();
    if let Some(path) = &flags.plot {
        std::fs::write(path, plot::svg(&summaries))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if flags.json {
        let report = json!({
            "pods": flags.pods,
            "nodes": flags.nodes,
            "gpus": trace.capacity() / aliquot_cli::trace::WHOLE,
            "seeds": flags.seeds.0,
            "load": flags.load,
            "policies": summaries,
        });
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", report::table(&summaries));
    }
    Ok(())
}
