//! `kubectl-aliquot`: see the library for what it does.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "the output of a command")]
#![allow(clippy::print_stderr, reason = "notes beside the output")]

use std::io::{ErrorKind, Write as _};
use std::path::Path;
use std::process::ExitCode;

use aliquot_cli::complete::{self, Names};
use aliquot_cli::config::{self, Config};
use aliquot_cli::doctor::finding::Report;
use aliquot_cli::doctor::{self, Doctor, DoctorCommand};
use aliquot_cli::output::{Output, message, printable};
use aliquot_cli::program::{Command, Program};
use anyhow::{Context as _, Result};

fn main() -> ExitCode {
    let mut words: Vec<String> = std::env::args_os()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let called = words.first().map(Path::new).and_then(Path::file_name);
    if called.is_some_and(|name| name == complete::NAME) {
        words.remove(0);
        let names = |names: Names, before: &[String]| {
            let runtime = runtime().ok();
            let found = runtime.and_then(|runtime| runtime.block_on(names.read(before)));
            found.unwrap_or_default()
        };
        return print(&complete::answer(&words, names))
            .map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    let program = Program::read(std::env::args_os()).unwrap_or_else(|error| error.exit());
    run(program.command).unwrap_or_else(|error| {
        eprintln!("Error: {}", message(&error));
        ExitCode::FAILURE
    })
}

fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Config(Config::Validate(flags)) => return validate(&flags),
        Command::Config(Config::Convert(flags)) => print(&flags.run()?)?,
        Command::Config(Config::Show(flags)) => print(&runtime()?.block_on(flags.run())?)?,
        Command::Explain(flags) => print(&runtime()?.block_on(flags.run())?)?,
        Command::Resize(flags) => print(&runtime()?.block_on(flags.run())?)?,
        Command::Top(flags) => {
            print(&runtime()?.block_on(flags.run(&note))?)?;
        }
        Command::Dashboard(flags) => {
            runtime()?.block_on(flags.run(|url| println!("{url}"), note))?;
        }
        Command::Preflight(flags) => {
            let report = runtime()?.block_on(Box::pin(flags.run()))?;
            return shown(&report, report.code(), flags.output);
        }
        Command::Doctor(flags) => return runtime()?.block_on(Box::pin(diagnose(*flags))),
    }
    Ok(ExitCode::SUCCESS)
}

async fn diagnose(flags: Doctor) -> Result<ExitCode> {
    let (report, output) = match &flags.what {
        None => {
            let (report, code) = Box::pin(flags.run(note)).await?;
            return shown(&report, code, flags.common.output);
        }
        Some(DoctorCommand::Node(node)) => (Box::pin(node.run()).await?, node.common.output),
        Some(DoctorCommand::ContainerView) => {
            println!(
                "{}",
                doctor::container_view_json().map_err(anyhow::Error::msg)?
            );
            return Ok(ExitCode::SUCCESS);
        }
    };
    shown(&report, report.code(), output)
}

fn shown(report: &Report, code: u8, output: Output) -> Result<ExitCode> {
    print(&output.text(report, |all| report.table(all))?)?;
    if report.checked_nothing() {
        eprintln!("Error: nothing could be checked; the report has the reason of each check");
    }
    Ok(ExitCode::from(code))
}

/// What is missing in an answer, or waited for.
fn note(text: &str) {
    eprintln!("{}", printable(text.to_owned()));
}

/// Prints an answer. That its reader has read enough, as `head` does, is no error.
fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().context("cannot start")
}

/// Prints a line for each error and nothing else, so that other programs can parse them.
fn validate(flags: &config::Validate) -> Result<ExitCode> {
    match flags.run() {
        Ok(summary) => {
            print(&summary)?;
            Ok(ExitCode::SUCCESS)
        }
        Err(config::ConfigError::Invalid(errors)) => {
            eprintln!("{errors}");
            Ok(ExitCode::FAILURE)
        }
        Err(error) => Err(error.into()),
    }
}
