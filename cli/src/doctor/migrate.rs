//! `doctor migrate`: which workloads would behave differently with Aliquot. Works before Aliquot is
//! installed: [`gather`] lists the workloads, [`rules`] checks each.

mod environment;
mod escapes;
pub mod gather;
pub mod rules;
pub mod systems;

use aliquot_k8s::flags::{FlagError, RequestFlags};
use clap::Args;
use thiserror::Error;

use super::finding::{About, Report};
use crate::access::{Access, AccessError};
use crate::output::Output;
use systems::{CurrentSystem, Settings};

/// The chart's default of webhook.nvidiaRuntimeClasses.
pub(super) const NVIDIA_CLASSES: &str = "nvidia,nvidia-cdi,nvidia-legacy,nvidia-experimental";

/// The flags of `doctor migrate`.
#[derive(Debug, Args)]
pub struct Migrate {
    /// The system that serves the GPUs today
    #[arg(long, value_enum)]
    pub from: CurrentSystem,
    /// Only workloads of this namespace; defaults to all namespaces
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// Schedulers whose pods the webhook will take over, separated by commas
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "default-scheduler,hami-scheduler"
    )]
    pub replace_scheduler: Vec<String>,
    /// Runtime classes of NVIDIA's runtime, as in webhook.nvidiaRuntimeClasses
    #[arg(long, value_delimiter = ',', default_value = NVIDIA_CLASSES)]
    pub nvidia_runtime_class: Vec<String>,
    /// Output format; wide also lists workloads that stay the same
    #[arg(short, long, value_enum, default_value = "table")]
    pub output: Output,
    /// Resource names and defaults that Aliquot will have
    #[command(flatten)]
    pub request: RequestFlags,
    /// How to reach the cluster
    #[command(flatten)]
    pub access: Access,
}

/// Why there is no report.
#[derive(Debug, Error)]
pub enum MigrateError {
    /// The flags.
    #[error(transparent)]
    Flags(#[from] FlagError),
    /// The cluster.
    #[error(transparent)]
    Access(#[from] AccessError),
}

impl Migrate {
    /// The report: a finding for each change, and one for each workload that stays the same.
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
                .flat_map(|one| rules::findings(one, &settings)),
        );
        Ok(Report::of(found))
    }
}
