//! The two systems that are compared: today's, and Aliquot as it will be configured.

use aliquot_k8s::pod;
use clap::ValueEnum;

/// The system that serves the GPUs today.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CurrentSystem {
    /// HAMi 2.10
    Hami,
    /// NVIDIA's device plugin, or GPU Operator
    Nvidia,
}

/// The two systems that are compared.
#[derive(Clone, Debug)]
pub struct Settings {
    pub from: CurrentSystem,
    /// Resource names and defaults.
    pub pods: pod::Settings,
    /// Schedulers whose pods are taken over.
    pub replaced: Vec<String>,
}
