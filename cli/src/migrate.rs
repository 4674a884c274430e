//! `doctor migrate`: which workloads would mean something else with Aliquot, before the switch.
//!
//! [`gather`] lists workloads, [`rules`] says what changes for each.
//! Fed by: the API server. Must not: need Aliquot to be installed, or call alike what it cannot read.

mod around;
mod environment;
mod gather;
pub mod rules;

use aliquot_k8s::flags::{FlagError, RequestFlags};
use clap::{Args, ValueEnum};
use thiserror::Error;

use crate::doctor::finding::{About, Report};
use crate::live::{Access, LiveError};
use crate::output::Output;
use rules::Settings;

/// The flags of `doctor migrate`.
#[derive(Debug, Args)]
pub struct Migrate {
    /// What serves the GPUs today
    #[arg(long, value_enum)]
    pub from: From,
    /// Only workloads of this namespace; of all without
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// Schedulers whose pods the webhook will take over, with commas between
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "default-scheduler,hami-scheduler"
    )]
    pub replace_scheduler: Vec<String>,
    /// Runtime classes of NVIDIA's runtime, as webhook.nvidiaRuntimeClasses will name them
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "nvidia,nvidia-cdi,nvidia-legacy,nvidia-experimental"
    )]
    pub nvidia_runtime_class: Vec<String>,
    /// What is printed; wide shows what stays the same, too
    #[arg(short, long, value_enum, default_value = "table")]
    pub output: Output,
    /// Names and defaults that Aliquot will have
    #[command(flatten)]
    pub request: RequestFlags,
    /// How to reach the cluster
    #[command(flatten)]
    pub access: Access,
}

/// What serves the GPUs today.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum From {
    /// HAMi 2.10
    Hami,
    /// NVIDIA's device plugin, or GPU Operator
    Nvidia,
}

/// Why there is no report.
#[derive(Debug, Error)]
pub enum MigrateError {
    /// The flags.
    #[error(transparent)]
    Flags(#[from] FlagError),
    /// The cluster.
    #[error(transparent)]
    Live(#[from] LiveError),
}

impl Migrate {
    /// The report: a finding for each thing that changes, and one for each workload that stays as
    /// it is.
    pub async fn run(&self) -> Result<Report, MigrateError> {
        let settings = Settings {
            from: self.from,
            pods: self.request.settings()?,
            replaced: self.replace_scheduler.clone(),
            nvidia_runtime_classes: self.nvidia_runtime_class.clone(),
        };
        let client = self.access.client().await?;
        let (workloads, missing) = gather::workloads(&client, self.namespace.as_deref()).await?;
        let mut found: Vec<_> = missing
            .into_iter()
            .map(|(what, why)| About(what.to_owned()).unknown("workloads", why))
            .collect();
        found.extend(
            workloads
                .iter()
                .flat_map(|one| rules::judge(one, &settings)),
        );
        Ok(Report::of(found))
    }
}
