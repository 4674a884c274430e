//! The command line: every command, flag and help text. Also read by [`crate::complete`] and
//! [`crate::reference`].

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::config::Config;
use crate::doctor::Doctor;
use crate::live::Access;
use crate::mps_usage::Agents;
use crate::output::Output;
use crate::simulate::Simulate;
use crate::suggest::Suggest;

/// The exit codes, for the program's help and the reference.
pub const CODES: &str = "Exit codes: 0 success; 1 failure, with the reason on standard error; \
2 invalid command line. `doctor` and `doctor migrate`: 0 no findings; 1 warnings, or checks that \
could not be made; 2 problems, or nothing could be checked.";

/// Inspects Aliquot in a cluster, and simulates its policies
#[derive(Debug, Parser)]
#[command(name = "kubectl-aliquot", version, after_help = CODES)]
pub struct Program {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// All commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run policies over a trace of pods and print how full the GPUs get
    Simulate(Box<Simulate>),
    /// Explain why a pod is pending: for each node and GPU, whether it fits or the first reason why not
    Explain(Explain),
    /// Show the capacity of GPUs, what is allocated, and what is free
    Top(Top),
    /// Report problems of the cluster, a node or a migration to Aliquot, and what to do
    Doctor(Box<Doctor>),
    /// Show the peak use of each GPU's containers, and how many such containers fit on it
    Suggest(Suggest),
    /// Check, convert or show how GPUs are shared
    #[command(subcommand)]
    Config(Config),
}

/// The flags of `explain`.
#[derive(Debug, Args)]
pub struct Explain {
    /// Name of the pod
    pub pod: String,
    /// Namespace of the pod
    #[arg(short, long, default_value = "default")]
    pub namespace: String,
    /// Most nodes in the table
    #[arg(long, default_value_t = 20)]
    pub nodes: usize,
    /// Output format; wide shows all nodes
    #[arg(short, long, value_enum, default_value = "table")]
    pub output: Output,
    /// How to reach the cluster
    #[command(flatten)]
    pub access: Access,
}

/// The flags of `top`.
#[derive(Debug, Args)]
pub struct Top {
    /// What to list
    #[arg(value_enum, default_value = "nodes")]
    pub of: Of,
    /// Output format; wide adds how devices are shared, why they are closed, and resources
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
    /// GPUs and MIG instances
    Gpus,
    /// Pods with an allocation
    Pods,
}
