//! The administrator's settings for reviews. They do not change while the process runs.

use std::collections::BTreeSet;

use aliquot_core::request::{Defaults, ResourceNames};

/// The policy for `NVIDIA_VISIBLE_DEVICES` in a pod's own environment, which would give it GPUs
/// without an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum VisibleDevices {
    /// UUIDs become a pin that the scheduler allocates; every other value that gives access to a
    /// GPU is removed.
    Rewrite,
    /// The pod is refused.
    Deny,
    /// The value is left as it is.
    Allow,
}

/// Where an admitted pod has the amounts of its request. Its count is always a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum RequestForm {
    /// In its containers' resources.
    Resources,
    /// In its annotation `aliquot.dev/request`.
    Annotation,
}

impl RequestForm {
    /// Both forms.
    pub const ALL: [Self; 2] = [Self::Resources, Self::Annotation];

    /// The form's name in flags, paths and labels.
    pub fn name(self) -> &'static str {
        match self {
            Self::Resources => "resources",
            Self::Annotation => "annotation",
        }
    }
}

/// Everything that a review depends on besides the pod.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where admitted pods have the amounts of their requests, if their namespace has no label.
    pub request_as: RequestForm,
    /// Whether app containers retain the priority as a resource where requests are annotations. No
    /// instance type has that resource, so an autoscaler does not take the count for whole GPUs.
    pub retain_priority: bool,
    /// The cluster's names of the five resources.
    pub names: ResourceNames,
    /// Other resources of ours, under which renamed GPUs are advertised.
    pub extra: Vec<String>,
    /// Those of which a container may have one share only.
    pub strict: Vec<String>,
    /// The policy for `NVIDIA_VISIBLE_DEVICES` in a pod's own environment.
    pub visible_devices: VisibleDevices,
    /// What is filled in where a container sets nothing.
    pub defaults: Defaults,
    /// Our profile's name; pods with a share get it.
    pub scheduler_name: String,
    /// Schedulers whose pods we take over. A pod that names any other is only checked for ways to
    /// bypass the scheduler.
    pub replaced_schedulers: BTreeSet<String>,
    /// `runtimeClassName` for pods with a share that name none.
    pub runtime_class: Option<String>,
    /// Runtime classes of NVIDIA's runtime, which gives GPUs to a container by what its image sets.
    pub nvidia_runtime_classes: Vec<String>,
    /// Namespaces where a pod with a share may bypass it.
    pub escape_allowed: BTreeSet<String>,
    /// Host paths of the node agent, closed to pods with a share like `/dev`.
    pub agent_paths: Vec<String>,
}
