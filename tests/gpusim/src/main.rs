//! The command `gpusim`: creates a simulated machine and changes it while others use it.
#![allow(clippy::print_stdout, reason = "a command that answers on stdout")]

use std::path::PathBuf;

use aliquot_gpusim::SimulatedMachine;
use aliquot_gpusim::edit::compute_process;
use anyhow::Context as _;
use clap::{Args, Parser, Subcommand};

#[derive(Parser)]
#[command(about = "A simulated NVIDIA driver's machine", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Args)]
struct Target {
    /// State file; the library finds it by the same variable.
    #[arg(long, env = "GPUSIM_STATE")]
    state: PathBuf,
}

impl Target {
    fn machine(&self) -> SimulatedMachine {
        SimulatedMachine::at(&self.state)
    }
}

#[derive(Subcommand)]
enum Command {
    /// Make a state file from a machine file (YAML).
    Create {
        #[command(flatten)]
        target: Target,
        /// Machine file.
        #[arg(long)]
        file: PathBuf,
    },
    /// Print the machine as JSON.
    Show {
        #[command(flatten)]
        target: Target,
    },
    /// Change fields of one GPU, all at once.
    Set {
        #[command(flatten)]
        target: Target,
        /// Index or UUID.
        gpu: String,
        /// key=value, such as health=lost or memoryUsed=3000.
        #[arg(required = true)]
        fields: Vec<String>,
    },
    /// Report an XID of one GPU.
    Xid {
        #[command(flatten)]
        target: Target,
        /// Index or UUID.
        gpu: String,
        /// NVIDIA's XID number.
        code: u32,
        /// Numbers of the GPU and the compute instance that it came from.
        #[arg(long, value_parser = instance, default_value = "all")]
        instance: (u32, u32),
    },
    /// List the processes that have the driver open.
    Holders {
        #[command(flatten)]
        target: Target,
    },
    /// Unload the driver, unless a process has it open.
    Unload {
        #[command(flatten)]
        target: Target,
    },
    /// Load a driver after `unload`.
    Load {
        #[command(flatten)]
        target: Target,
        /// Its version, such as 590.44.01.
        version: String,
    },
    /// Reset a GPU that no process has open: a pending MIG mode takes effect, no MIG instance is left.
    Reset {
        #[command(flatten)]
        target: Target,
        /// Index or UUID.
        gpu: String,
    },
    /// What a reboot does to the GPUs: no process, no MIG instance.
    Reboot {
        #[command(flatten)]
        target: Target,
    },
    /// Processes on a GPU.
    Process {
        #[command(subcommand)]
        command: ProcessCommand,
    },
}

#[derive(Subcommand)]
enum ProcessCommand {
    /// Add a CUDA process, or change the one with this id.
    Add {
        #[command(flatten)]
        target: Target,
        /// Index or UUID.
        gpu: String,
        /// Process id on the host.
        pid: u32,
        /// GPU memory in MiB.
        memory_mib: u64,
        /// Percent of the GPU's compute.
        #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100))]
        utilisation: u32,
        /// Numbers of the GPU and the compute instance that it uses.
        #[arg(long, value_parser = instance, default_value = "all")]
        instance: (u32, u32),
    },
    /// Remove a process.
    Remove {
        #[command(flatten)]
        target: Target,
        /// Index or UUID.
        gpu: String,
        /// Process id on the host.
        pid: u32,
    },
}

/// `<GPU instance>:<compute instance>`, or `all` for the whole GPU.
fn instance(text: &str) -> Result<(u32, u32), String> {
    if text == "all" {
        return Ok((u32::MAX, u32::MAX));
    }
    let numbers = text.split_once(':').and_then(|(outer, inner)| {
        let number = |part: &str| part.parse::<u32>().ok();
        Some((number(outer)?, number(inner)?))
    });
    numbers.ok_or_else(|| "give <GPU instance>:<compute instance>, such as 7:0".to_owned())
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Create { target, file } => {
            let yaml = std::fs::read_to_string(&file)
                .with_context(|| format!("cannot read the machine file {}", file.display()))?;
            SimulatedMachine::create(&target.state, &yaml)?;
        }
        Command::Show { target } => println!("{:#}", target.machine().show()?),
        Command::Set {
            target,
            gpu,
            fields,
        } => {
            let pairs = fields.iter().map(|field| {
                let pair = field.split_once('=');
                pair.with_context(|| format!("{field:?} is not of the form key=value"))
            });
            let pairs = pairs.collect::<anyhow::Result<Vec<_>>>()?;
            target.machine().set(&gpu, &pairs)?;
        }
        Command::Xid {
            target,
            gpu,
            code,
            instance,
        } => target.machine().xid_of(&gpu, code, instance)?,
        Command::Holders { target } => {
            for holder in target.machine().holders()? {
                println!("{holder}");
            }
        }
        Command::Unload { target } => target.machine().unload()?,
        Command::Load { target, version } => target.machine().load(&version)?,
        Command::Reset { target, gpu } => target.machine().reset(&gpu)?,
        Command::Reboot { target } => target.machine().reboot()?,
        Command::Process { command } => match command {
            ProcessCommand::Add {
                target,
                gpu,
                pid,
                memory_mib,
                utilisation,
                instance,
            } => {
                let mut process = compute_process(pid, memory_mib);
                process.sm = utilisation;
                (process.gpu_instance, process.compute_instance) = instance;
                target.machine().add_process(&gpu, process)?;
            }
            ProcessCommand::Remove { target, gpu, pid } => {
                target.machine().remove_process(&gpu, pid)?;
            }
        },
    }
    Ok(())
}
