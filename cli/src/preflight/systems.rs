//! The two systems that are compared: today's, and Aliquot as it will be configured.

use aliquot_core::escape::AGENT_PATHS;
use aliquot_k8s::pod;
use aliquot_webhook::settings::{self, RequestForm, VisibleDevices};
use clap::ValueEnum;

/// The chart's default of webhook.nvidiaRuntimeClasses.
pub(super) const NVIDIA_CLASSES: [&str; 4] = [
    "nvidia",
    "nvidia-cdi",
    "nvidia-legacy",
    "nvidia-experimental",
];

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

impl Settings {
    /// The webhook's settings: those that are compared, and the chart's defaults for the rest.
    pub(super) fn webhook(&self) -> settings::Settings {
        settings::Settings {
            request_as: RequestForm::Resources,
            retain_priority: false,
            names: self.pods.names.clone(),
            extra: self.pods.extra.clone(),
            strict: Vec::new(),
            visible_devices: VisibleDevices::Rewrite,
            defaults: self.pods.defaults,
            scheduler_name: self.pods.scheduler_name.clone(),
            replaced_schedulers: self.replaced.iter().cloned().collect(),
            runtime_class: None,
            nvidia_runtime_classes: NVIDIA_CLASSES.map(str::to_owned).into(),
            escape_allowed: [].into(),
            agent_paths: AGENT_PATHS.map(str::to_owned).into(),
        }
    }
}
