//! What the administrator decided about reviews, as plain values.
//!
//! Fed by: the flags of the binary.
//! Must not: change while reviews run; a new setting is a new process.

use std::collections::BTreeSet;

use aliquot_core::escape::AGENT_PATHS;
use aliquot_core::request::{Defaults, ResourceNames};

/// What becomes of `NVIDIA_VISIBLE_DEVICES` in a pod's own environment, with which
/// it would reach GPUs past all books.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum VisibleDevices {
    /// Uuids become a pin that is booked; whatever else would reach a GPU is taken out.
    #[default]
    Rewrite,
    /// Refused.
    Deny,
    /// Left as it is.
    Allow,
}

/// Everything that a review depends on besides the pod.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The cluster's names of the five resources.
    pub names: ResourceNames,
    /// Other resources of ours, that renamed cards are advertised under.
    pub extra: Vec<String>,
    /// Those of which a container may have one share only.
    pub strict: Vec<String>,
    /// What becomes of `NVIDIA_VISIBLE_DEVICES` in a pod's own environment.
    pub visible_devices: VisibleDevices,
    /// What is filled in where a container says nothing.
    pub defaults: Defaults,
    /// Our profile's name; pods with a share get it.
    pub scheduler_name: String,
    /// Schedulers whose pods we take over. Of a pod that names any other only what would open
    /// GPUs past the books is judged.
    pub replaced_schedulers: BTreeSet<String>,
    /// `runtimeClassName` for pods with a share that name none.
    pub runtime_class: Option<String>,
    /// Runtime classes behind which NVIDIA's runtime is, which opens GPUs by what an image sets.
    pub nvidia_runtime_classes: Vec<String>,
    /// Namespaces where a pod with a share may reach around it.
    pub escape_allowed: BTreeSet<String>,
    /// Host paths of the node agent, closed to pods with a share like `/dev`.
    pub agent_paths: Vec<String>,
    /// A pod's own label keeps it from being reviewed; its namespace's always does.
    pub pods_may_ignore: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            names: ResourceNames::default(),
            extra: Vec::new(),
            strict: Vec::new(),
            visible_devices: VisibleDevices::default(),
            defaults: Defaults::default(),
            scheduler_name: "aliquot-scheduler".to_owned(),
            replaced_schedulers: ["default-scheduler", "hami-scheduler"]
                .map(str::to_owned)
                .into(),
            runtime_class: None,
            nvidia_runtime_classes: [
                "nvidia",
                "nvidia-cdi",
                "nvidia-legacy",
                "nvidia-experimental",
            ]
            .map(str::to_owned)
            .into(),
            escape_allowed: BTreeSet::new(),
            agent_paths: AGENT_PATHS.map(str::to_owned).into(),
            pods_may_ignore: true,
        }
    }
}
