//! The command line: every command. Each declares its own flags and help texts. Also read by [`crate::complete`] and
//! [`crate::reference`].

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser, Subcommand};

use crate::config::Config;
use crate::dashboard::Dashboard;
use crate::doctor::Doctor;
use crate::explain::Explain;
use crate::preflight::Preflight;
use crate::resize::Resize;
use crate::top::Top;

/// The exit codes, for the program's help and the reference.
pub const CODES: &str = "Exit codes: 0 done, and what was checked is in order; 1 not done, with the reason on standard \
error, or not in order: errors in a configuration, problems, warnings, and checks that could not be made; 2 the command \
line is invalid. `doctor --wait`: 0 also with warnings.";

/// Shows and checks what Aliquot does in a cluster
#[derive(Debug, Parser)]
#[command(name = "kubectl-aliquot", version, after_help = CODES)]
pub struct Program {
    #[command(subcommand)]
    pub command: Command,
}

impl Program {
    /// Reads the command line; the first word is the program's.
    ///
    /// # Errors
    /// The words are no command, or flags of it do not go together.
    pub fn read<W: Into<OsString> + Clone>(
        words: impl IntoIterator<Item = W>,
    ) -> Result<Self, clap::Error> {
        let program = Self::try_parse_from(words)?;
        let conflict = match &program.command {
            Command::Top(top) => top.conflict(),
            _ => None,
        };
        match conflict {
            Some(why) => Err(Self::command().error(ErrorKind::ArgumentConflict, why)),
            None => Ok(program),
        }
    }
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Explain why a pod is pending, or where one would go: for each node and GPU, whether it fits or the first
    /// reason why not
    Explain(Explain),
    /// Give a running pod another share of its GPUs
    Resize(Box<Resize>),
    /// Show the capacity of GPUs, what is allocated, what is used of it, and what is free
    Top(Top),
    /// Open the cluster page in a browser, through the API server, until Ctrl-C
    Dashboard(Dashboard),
    /// Before an installation: report what stands in the way, and which workloads would behave differently
    Preflight(Box<Preflight>),
    /// Report problems of the cluster or of a node, and what to do
    Doctor(Box<Doctor>),
    /// Check, convert or show how GPUs are shared
    #[command(subcommand)]
    Config(Config),
}
