//! `kubectl-aliquot`: see the library for what it does.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "the output of a command")]
#![allow(clippy::print_stderr, reason = "progress beside the output")]

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use aliquot_cli::config::{self, Config};
use aliquot_cli::live::{self, Access};
use aliquot_cli::measured::{self, Agents, Measured};
use aliquot_cli::plot;
use aliquot_cli::report::{self, Summary};
use aliquot_cli::simulate::{Simulate, simulate};
use aliquot_cli::suggest::Suggest;
use aliquot_cli::table;
use aliquot_cli::trace::Trace;
use aliquot_cli::what_if;
use aliquot_core::NodeName;
use aliquot_core::fit::Policies;
use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand, ValueEnum};
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
    Simulate(Box<Simulate>),
    /// Say why a pod waits: for each node and GPU, whether it fits or the first reason why not
    Explain(Explain),
    /// Show what GPUs have, have promised, and could still promise
    Top(Top),
    /// Show what containers were seen to use of each GPU, and how many of them it could carry
    Suggest(Suggest),
    /// Check, convert or show which GPU is shared in which way
    #[command(subcommand)]
    Config(Config),
}

/// The flags of `explain`.
#[derive(Debug, clap::Args)]
struct Explain {
    /// The pod
    pod: String,
    /// Its namespace
    #[arg(short, long, default_value = "default")]
    namespace: String,
    /// Most nodes in the table
    #[arg(long, default_value_t = 20)]
    nodes: usize,
    /// Table or JSON
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
    #[command(flatten)]
    access: Access,
}

/// The flags of `top`.
#[derive(Debug, clap::Args)]
struct Top {
    /// A line for each of these
    #[arg(value_enum, default_value = "nodes")]
    of: Of,
    /// Table or JSON
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
    #[command(flatten)]
    access: Access,
    #[command(flatten)]
    agents: Agents,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Of {
    Nodes,
    Gpus,
    Pods,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    Table,
    Json,
}

fn main() -> Result<()> {
    match Program::parse().command {
        Command::Config(Config::Validate(flags)) => validate(&flags),
        Command::Config(Config::Convert(flags)) => {
            print!("{}", flags.run()?);
            Ok(())
        }
        Command::Config(Config::Show(flags)) => {
            print!("{}", runtime()?.block_on(flags.run())?);
            Ok(())
        }
        Command::Config(Config::Plan(flags)) => {
            print!("{}", flags.run()?);
            Ok(())
        }
        Command::Simulate(flags) => run(&flags),
        Command::Explain(flags) => runtime()?.block_on(explain(&flags)),
        Command::Top(flags) => runtime()?.block_on(top(&flags)),
        Command::Suggest(flags) => {
            print!("{}", runtime()?.block_on(flags.run())?);
            Ok(())
        }
    }
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().context("cannot start")
}

/// A line for each fault and nothing else, so that other programs can read them.
fn validate(flags: &config::Validate) -> Result<()> {
    match flags.run() {
        Ok(said) => {
            println!("{said}");
            Ok(())
        }
        Err(config::ConfigError::Faults(faults)) => {
            eprintln!("{faults}");
            std::process::exit(1)
        }
        Err(error) => Err(error.into()),
    }
}

async fn explain(flags: &Explain) -> Result<()> {
    let answer = flags.access.explain(&flags.namespace, &flags.pod).await?;
    match flags.output {
        Output::Json => println!("{}", serde_json::to_string_pretty(&answer)?),
        Output::Table => print!("{}", table::explain(&answer, flags.nodes)),
    }
    Ok(())
}

async fn top(flags: &Top) -> Result<()> {
    if flags.of == Of::Pods {
        let (nodes, pods) = flags.access.snapshot().await?;
        let mut pods = live::holding(&pods);
        let found = measure(flags, &measured::nodes_among(&nodes)).await;
        measured::give(&mut pods, &found);
        match flags.output {
            Output::Json => println!("{}", serde_json::to_string_pretty(&pods)?),
            Output::Table => print!("{}{}", table::pods(&pods), measured::pods(&pods)),
        }
        return Ok(());
    }
    let (answer, unasked) = flags.access.top().await?;
    if let Some(error) = unasked {
        eprintln!("{error}");
        eprintln!(
            "computed from inventories and allocations; what is being bound right now is missing"
        );
    }
    let mut found = Vec::new();
    if flags.of == Of::Gpus {
        found = measure(flags, &measured::nodes_of(&answer.nodes)).await;
    }
    match (flags.output, flags.of) {
        (Output::Json, of) => {
            let mut answer = serde_json::to_value(&answer)?;
            if of == Of::Gpus {
                answer["mps"] = json!(found);
            }
            println!("{}", serde_json::to_string_pretty(&answer)?);
        }
        (Output::Table, Of::Gpus) => print!(
            "{}{}",
            table::gpus(&answer.nodes, answer.default_cores),
            measured::gpus(&found)
        ),
        (Output::Table, _) => print!("{}", table::nodes(&answer.nodes)),
    }
    Ok(())
}

/// What the clients of MPS hold on these nodes. Who does not answer is told beside the output.
async fn measure(flags: &Top, nodes: &BTreeSet<NodeName>) -> Vec<Measured> {
    let found = flags.agents.ask(&flags.access, nodes).await;
    for missing in &found.missing {
        eprintln!("what MPS clients hold is not known of {missing}");
    }
    found.all
}

fn run(flags: &Simulate) -> Result<()> {
    if flags.from_cluster {
        return runtime()?.block_on(ask(flags));
    }
    let nodes = flags.nodes.as_deref().context("--nodes is missing")?;
    let pods = flags.pods.as_deref().context("--pods is missing")?;
    let trace = Trace::read(nodes, pods)?;
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
            "pods": pods,
            "nodes": nodes,
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

async fn ask(flags: &Simulate) -> Result<()> {
    let path = flags.pod.as_deref().context("--pod is missing")?;
    let text = std::fs::read_to_string(path);
    let text = text.with_context(|| format!("cannot read {}", path.display()))?;
    let pod = what_if::manifest(&text).with_context(|| path.display().to_string())?;
    let (nodes, pods) = flags.access.snapshot().await?;
    let policies = Policies {
        node: flags.node_policy,
        gpu: flags.gpu_policy,
        ..Policies::default()
    };
    let settings = flags.request.settings()?;
    let answer = what_if::what_if(&nodes, &pods, &pod, &settings, policies)?;
    if flags.json {
        println!("{}", serde_json::to_string_pretty(&answer)?);
    } else {
        print!("{}", table::what_if(&answer, flags.most));
    }
    Ok(())
}
