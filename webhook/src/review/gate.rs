//! Step 4, the part of the whole pod: which containers NVIDIA's runtime would open GPUs to
//! though nothing in their own environment says so, and which are left alone.
//!
//! Fed by: the pod, and what the administrator decided.
//! Must not: close a container that another GPU plugin gives its cards by that variable.

use aliquot_core::request::{self, Resource};
use serde_json::Value;

use super::escape;
use super::pod::{self, Container};
use super::share::Texts;
use crate::settings::{Settings, VisibleDevices};

/// What holds for all containers of one pod.
pub(super) struct Gate<'a> {
    pub(super) pod: &'a Value,
    pub(super) settings: &'a Settings,
    pub(super) policy: VisibleDevices,
    /// Containers of it have a share of ours.
    pub(super) shared: bool,
}

impl Gate<'_> {
    /// Nothing is done to what this container sets: the administrator allows it, or it reaches
    /// every GPU without that, as NVIDIA's own plugin does. Such a one has no share.
    pub(super) fn leaves(&self, container: &Container<'_>) -> bool {
        let above = || escape::is_above(self.pod, container, self.settings);
        self.policy == VisibleDevices::Allow || (!self.shared && above())
    }

    /// What its image or an `envFrom` sets would open GPUs to a container that asks for none.
    pub(super) fn shuts(&self, container: &Container<'_>) -> bool {
        self.shared || (self.class().is_some() && !self.is_given_by_others(container))
    }

    /// The pod's runtime class, where NVIDIA's runtime is behind it.
    pub(super) fn class(&self) -> Option<&str> {
        let class = self.pod["spec"]["runtimeClassName"].as_str()?;
        let ours = &self.settings.nvidia_runtime_classes;
        ours.iter().any(|one| one == class).then_some(class)
    }

    /// It asks for GPUs that others offer, and a scheduler looks whether the node has them. A
    /// kubelet does not: it takes a pod that names its node, and drops what nobody offers there.
    fn is_given_by_others(&self, container: &Container<'_>) -> bool {
        let limits = container.raw["resources"]["limits"].as_object();
        let mut names = limits.into_iter().flat_map(|limits| limits.keys());
        // Parts of a card, which a node may publish and no plugin hands out.
        let parts = Resource::ALL.into_iter().filter(|&r| r != Resource::Gpu);
        let parts: Vec<&str> = parts.map(|part| self.settings.names.of(part)).collect();
        pod::named_node(self.pod).is_none()
            && names.any(|name| {
                let text = Texts::named(container, name).limit.unwrap_or_default();
                is_gpu(name)
                    && !parts.contains(&name.as_str())
                    && request::count(text).is_ok_and(|count| count > 0)
            })
    }
}

/// As `nvidia.com/gpu.shared`, `volcano.sh/vgpu-number` and `aliyun.com/gpu-mem` are.
fn is_gpu(resource: &str) -> bool {
    let parts = resource.split_once('/');
    parts.is_some_and(|(domain, name)| domain == "nvidia.com" || name.contains("gpu"))
}
