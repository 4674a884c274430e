//! Attributes a process on a GPU to a container with a share, or finds why it is unmanaged. No input
//! of this can be written by a tenant, and the container of a pod is never guessed.

use crate::managed_containers::{ContainerDevice, ManagedContainer, ManagedContainers};
use crate::node_sample::{NodeContext, ProcessSample};
use crate::pods::GpuSource;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UnmanagedReason {
    Host,
    NoShare,
    LostShare,
    Foreign,
    NoContainer,
    OtherContainer,
    OtherGpu,
    NoLimiter,
}

impl UnmanagedReason {
    /// The value of the metrics' label `reason`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::NoShare => "no-share",
            Self::LostShare => "lost-share",
            Self::NoContainer => "no-container",
            Self::Foreign => "foreign",
            Self::OtherContainer => "other-container",
            Self::OtherGpu => "other-gpu",
            Self::NoLimiter => "no-library",
        }
    }

    /// Whether the ledger counts nothing of what such a process holds: its pod has no share that it
    /// may be part of.
    pub fn is_outside_every_share(self) -> bool {
        !matches!(self, Self::LostShare | Self::NoContainer | Self::NoLimiter)
    }

    /// The reason in words, for events.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Host => "it is in no pod",
            Self::NoShare => "its pod has no share of a GPU",
            Self::LostShare => "its pod has an allocation, but this node has no record of it",
            Self::NoContainer => "it is in no known container of its pod",
            Self::Foreign => "its pod has the GPU from another device plugin",
            Self::OtherContainer => "its container has no share of a GPU",
            Self::OtherGpu => "its container has no share of this GPU",
            Self::NoLimiter => "it bypasses the limiter of its container",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A container with a share: its index, and that of the device in it.
    Share(usize, usize),
    /// The same, but the process bypasses the limiter.
    WithoutLimiter(usize, usize),
    Unmanaged(UnmanagedReason),
    /// An MPS server, which uses memory for its clients only.
    MpsServer,
    /// Not known: the MIG instance is new, or the pod's share or its current uuids cannot be read.
    Unknown,
    /// Not known: the API server has not reported this container of the pod.
    UnknownContainer,
}

impl Owner {
    /// The share that the process uses, with the limiter or without: index of its container, and of
    /// the device in it.
    pub fn share(self) -> Option<(usize, usize)> {
        match self {
            Self::Share(at, device) | Self::WithoutLimiter(at, device) => Some((at, device)),
            _ => None,
        }
    }
}

/// The owner of a process, whether it uses the limiter or not.
pub fn owner(one: &ProcessSample, containers: &ManagedContainers, context: &NodeContext) -> Owner {
    let location = &one.process.location;
    let is_server = context.servers.contains(&one.process.identity.pid);
    let Some(pod) = &location.pod else {
        let host = Owner::Unmanaged(UnmanagedReason::Host);
        return if is_server { Owner::MpsServer } else { host };
    };
    let of_pod: Vec<(usize, &ManagedContainer)> = containers
        .all
        .iter()
        .enumerate()
        .filter(|(_, container)| container.pod == *pod)
        .collect();
    if of_pod.is_empty() {
        if containers.accepted.contains(pod) {
            return Owner::Unknown;
        }
        if is_server || context.mps_pods.contains(pod) {
            return Owner::MpsServer;
        }
        if containers.unlisted {
            return Owner::Unknown;
        }
        return Owner::Unmanaged(match context.pods.get(pod).map(|pod| pod.gpu) {
            Some(GpuSource::OtherPlugin) => UnmanagedReason::Foreign,
            // Its share was recorded before its first process started.
            Some(GpuSource::Allocation) => UnmanagedReason::LostShare,
            Some(GpuSource::Nothing) | None => UnmanagedReason::NoShare,
        });
    }
    let id = location.container.clone().unwrap_or_default();
    let name = context.container_names.get(&(pod.clone(), id));
    // A pod with a share may have containers without one.
    let Some(name) = name else {
        return Owner::UnknownContainer;
    };
    let found = of_pod.iter().find(|(_, container)| container.name == *name);
    let Some((at, container)) = found.copied() else {
        return Owner::Unmanaged(UnmanagedReason::OtherContainer);
    };
    let current_uuids = context.current_uuids.get(at).map_or(&[][..], Vec::as_slice);
    match device(one, &container.devices, current_uuids, context) {
        Some(device) => Owner::Share(at, device),
        None if context.is_on_new_instance(one) => Owner::Unknown,
        // What the container sees cannot be read.
        None if current_uuids.is_empty() && container.devices.iter().any(is_instance) => {
            Owner::Unknown
        }
        None => Owner::Unmanaged(UnmanagedReason::OtherGpu),
    }
}

fn is_instance(device: &ContainerDevice) -> bool {
    device.uuid.as_str().starts_with("MIG-")
}

/// The container's device that a process uses.
fn device(
    one: &ProcessSample,
    devices: &[ContainerDevice],
    current_uuids: &[String],
    context: &NodeContext,
) -> Option<usize> {
    let gpu = one.gpu.as_str();
    let Some(numbers) = one.instance else {
        let mut all = devices.iter();
        return all.position(|device| device.uuid.as_str() == gpu);
    };
    let known = context.instances.get(&(gpu.to_owned(), numbers));
    let by_uuid = || {
        let uuid = &known?.uuid;
        let now = current_uuids.iter().position(|name| name == uuid);
        let allocated = || devices.iter().position(|one| one.uuid.as_str() == uuid);
        now.filter(|at| *at < devices.len()).or_else(allocated)
    };
    let created_for_it = || {
        devices.iter().position(|device| {
            let profile = device.profile.as_deref();
            let same = profile == known.map(|known| known.profile.as_str());
            device.uuid.as_str() == gpu && profile.is_some() && same
        })
    };
    by_uuid().or_else(created_for_it)
}

#[cfg(test)]
#[path = "attribution_tests.rs"]
mod tests;
