//! `kubectl-aliquot`: see the library for what it does.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "the output of a command")]
#![allow(clippy::print_stderr, reason = "progress beside the output")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use aliquot_cli::complete;
use aliquot_cli::config::{self, Config};
use aliquot_cli::doctor::finding::Report;
use aliquot_cli::doctor::{self, Doctor, DoctorCommand};
use aliquot_cli::live;
use aliquot_cli::mps_usage::{self, ContainerUsage};
use aliquot_cli::output::{Output, message};
use aliquot_cli::plot;
use aliquot_cli::program::{Command, Explain, Of, Program, Top};
use aliquot_cli::report::{self, Summary};
use aliquot_cli::simulate::{Simulate, simulate};
use aliquot_cli::table;
use aliquot_cli::top as top_table;
use aliquot_cli::trace::Trace;
use aliquot_cli::what_if;
use aliquot_core::NodeName;
use aliquot_core::fit::Policies;
use anyhow::{Context as _, Result};
use clap::Parser as _;
use serde_json::json;

/// Runs shorter than this print no progress.
const QUIET: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    let mut words: Vec<String> = std::env::args_os()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let called = words.first().map(Path::new).and_then(Path::file_name);
    if called.is_some_and(|name| name == complete::NAME) {
        words.remove(0);
        print!("{}", complete::answer(&words));
        return ExitCode::SUCCESS;
    }
    let command = Program::parse().command;
    // Of `doctor`, 1 means warnings.
    let failed = if matches!(command, Command::Doctor(_)) {
        2
    } else {
        1
    };
    run(command).unwrap_or_else(|error| {
        eprintln!("Error: {}", message(&error));
        ExitCode::from(failed)
    })
}

fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Config(Config::Validate(flags)) => return validate(&flags),
        Command::Config(Config::Convert(flags)) => print!("{}", flags.run()?),
        Command::Config(Config::Show(flags)) => print!("{}", runtime()?.block_on(flags.run())?),
        Command::Config(Config::Plan(flags)) => print!("{}", flags.run()?),
        Command::Simulate(flags) => run_simulation(&flags)?,
        Command::Explain(flags) => runtime()?.block_on(explain(&flags))?,
        Command::Top(flags) => runtime()?.block_on(top(&flags))?,
        Command::Suggest(flags) => print!("{}", runtime()?.block_on(flags.run())?),
        Command::Doctor(flags) => return runtime()?.block_on(Box::pin(diagnose(*flags))),
    }
    Ok(ExitCode::SUCCESS)
}

async fn diagnose(flags: Doctor) -> Result<ExitCode> {
    let (report, output) = match &flags.what {
        None => (Box::pin(flags.run()).await?, flags.common.output),
        Some(DoctorCommand::Node(node)) => (Box::pin(node.run()).await?, node.common.output),
        Some(DoctorCommand::Migrate(flags)) => (Box::pin(flags.run()).await?, flags.output),
        Some(DoctorCommand::ContainerView) => {
            println!(
                "{}",
                doctor::container_view_json().map_err(anyhow::Error::msg)?
            );
            return Ok(ExitCode::SUCCESS);
        }
    };
    shown(&report, output)
}

fn shown(report: &Report, output: Output) -> Result<ExitCode> {
    print!("{}", output.text(report, |all| report.table(all))?);
    Ok(ExitCode::from(report.code()))
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().context("cannot start")
}

/// Prints a line for each error and nothing else, so that other programs can parse them.
fn validate(flags: &config::Validate) -> Result<ExitCode> {
    match flags.run() {
        Ok(summary) => {
            println!("{summary}");
            Ok(ExitCode::SUCCESS)
        }
        Err(config::ConfigError::Invalid(errors)) => {
            eprintln!("{errors}");
            Ok(ExitCode::FAILURE)
        }
        Err(error) => Err(error.into()),
    }
}

async fn explain(flags: &Explain) -> Result<()> {
    let answer = flags.access.explain(&flags.namespace, &flags.pod).await?;
    let table = |wide| table::explain(&answer, if wide { usize::MAX } else { flags.nodes });
    print!("{}", flags.output.text(&answer, table)?);
    Ok(())
}

async fn top(flags: &Top) -> Result<()> {
    if flags.of == Of::Pods {
        let (nodes, pods) = flags.access.snapshot().await?;
        let mut pods = live::pods_with_allocations(&pods);
        let found = measure(flags, &mps_usage::nodes_among(&nodes)).await;
        mps_usage::add_to_pods(&mut pods, &found);
        let table = |_| format!("{}{}", top_table::pods(&pods), mps_usage::pods(&pods));
        print!("{}", flags.output.text(&pods, table)?);
        return Ok(());
    }
    let (answer, unasked) = flags.access.top().await?;
    if let Some(error) = unasked {
        eprintln!("{error}");
        eprintln!(
            "computed from the nodes' inventories and the pods' allocations, without pods that are being bound"
        );
    }
    let mut value = serde_json::to_value(&answer)?;
    let mut found = Vec::new();
    if flags.of == Of::Gpus {
        found = measure(flags, &mps_usage::nodes_of(&answer.nodes)).await;
        value["mps"] = json!(found);
    }
    let table = |wide| match flags.of {
        Of::Gpus => {
            let (nodes, cores) = (&answer.nodes, answer.default_cores);
            format!(
                "{}{}",
                top_table::gpus(nodes, cores, wide),
                mps_usage::gpus(&found)
            )
        }
        Of::Nodes | Of::Pods => top_table::nodes(&answer.nodes, wide),
    };
    print!("{}", flags.output.text(&value, table)?);
    Ok(())
}

/// What the MPS clients on these nodes use. Nodes that do not answer are named on standard error.
async fn measure(flags: &Top, nodes: &BTreeSet<NodeName>) -> Vec<ContainerUsage> {
    let found = flags.agents.ask(&flags.access, nodes).await;
    for missing in &found.missing {
        eprintln!("MPS usage is unknown for node {missing}");
    }
    found.all
}

fn run_simulation(flags: &Simulate) -> Result<()> {
    if flags.from_cluster {
        return runtime()?.block_on(run_what_if(flags));
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

async fn run_what_if(flags: &Simulate) -> Result<()> {
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
