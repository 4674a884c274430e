//! The command line: every command, flag and help text.
//!
//! Fed by: nothing. Read by the program, by the completion ([`crate::complete`]) and by the reference
//! ([`crate::reference`]). Must not: run anything.

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::config::Config;
use crate::doctor::Doctor;
use crate::live::Access;
use crate::measured::Agents;
use crate::output::Output;
use crate::simulate::Simulate;
use crate::suggest::Suggest;

/// What the exit codes mean; for the help of the program and of the reference.
pub const CODES: &str = "Exit codes: 0 done; 1 it could not be done, and standard error says why; \
2 the command line cannot be meant. `doctor` and `doctor migrate`: 0 all is well; 1 warnings, or \
something could not be looked at; 2 problems, or nothing could be looked at.";

/// Asks Aliquot, or tries its policies
#[derive(Debug, Parser)]
#[command(name = "kubectl-aliquot", version, after_help = CODES)]
pub struct Program {
    /// What is to be done.
    #[command(subcommand)]
    pub command: Command,
}

/// All commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Drive policies over a trace of pods and say how full the GPUs get
    Simulate(Box<Simulate>),
    /// Say why a pod waits: for each node and GPU, whether it fits or the first reason why not
    Explain(Explain),
    /// Show what GPUs have, have promised, and could still promise
    Top(Top),
    /// Say what is wrong with the cluster, a node, or a move to Aliquot, and what to do
    Doctor(Box<Doctor>),
    /// Show what containers were seen to use of each GPU, and how many of them it could carry
    Suggest(Suggest),
    /// Check, convert or show which GPU is shared in which way
    #[command(subcommand)]
    Config(Config),
}

/// The flags of `explain`.
#[derive(Debug, Args)]
pub struct Explain {
    /// The pod
    pub pod: String,
    /// Its namespace
    #[arg(short, long, default_value = "default")]
    pub namespace: String,
    /// Most nodes in the table
    #[arg(long, default_value_t = 20)]
    pub nodes: usize,
    /// What is printed; wide shows all nodes
    #[arg(short, long, value_enum, default_value = "table")]
    pub output: Output,
    /// How to reach the cluster
    #[command(flatten)]
    pub access: Access,
}

/// The flags of `top`.
#[derive(Debug, Args)]
pub struct Top {
    /// A line for each of these
    #[arg(value_enum, default_value = "nodes")]
    pub of: Of,
    /// What is printed; wide adds how nodes are shared and why they are closed, and resources
    #[arg(short, long, value_enum, default_value = "table")]
    pub output: Output,
    /// How to reach the cluster
    #[command(flatten)]
    pub access: Access,
    /// How to reach the agents
    #[command(flatten)]
    pub agents: Agents,
}

/// What `top` has a line for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Of {
    /// Nodes
    Nodes,
    /// GPUs and instances
    Gpus,
    /// Pods that hold shares
    Pods,
}
