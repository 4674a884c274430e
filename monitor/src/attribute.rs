//! Whose a process on a card is: which container's share, or nobody's and why.
//!
//! Fed by: the driver's lists, the processes' cgroups, the seats, the names of containers. A tenant
//! has no say in any of these. Must not: guess which container of a pod it is.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_core::PodUid;

use crate::processes::Known;
use crate::seats::{Device, Seat};

/// A process that has a card open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnCard {
    /// The card.
    pub card: String,
    /// The instance of it, by the driver's numbers.
    pub instance: Option<(u32, u32)>,
    /// Bytes that it holds, as far as the driver says.
    pub bytes: u64,
    /// What the kernel says of it.
    pub process: Known,
}

/// An instance of a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Such as `3g.20gb`.
    pub profile: String,
    /// Its uuid.
    pub uuid: String,
}

/// What is known besides processes and seats.
#[derive(Clone, Debug, Default)]
pub struct Beside {
    /// Name of each container, by pod and the runtime's id.
    pub containers: BTreeMap<(PodUid, String), String>,
    /// Pods that are known here, with or without a share.
    pub pods: BTreeMap<PodUid, Said>,
    /// What the driver calls each device of each seat now, by the seats' limits pages; nothing of
    /// a seat whose page cannot be read.
    pub called: Vec<Vec<String>>,
    /// Instances, by card and the driver's numbers.
    pub instances: BTreeMap<(String, (u32, u32)), Instance>,
    /// Servers and daemons of MPS.
    pub servers: BTreeSet<u32>,
    /// The agent's own pod, where it is in one: its GPU processes are such servers, also before
    /// their keeper told of them.
    pub own: Option<PodUid>,
    /// Pods that were given a share, also one that cannot be read.
    pub accepted: BTreeSet<PodUid>,
    /// There may be pods with a share that are not known.
    pub unlisted: bool,
}

/// What the API server says of a pod, as far as it matters for its processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// It asks for a device, and we gave it none: another plugin did.
    pub foreign: bool,
    /// The scheduler gave it a share.
    pub allocated: bool,
    /// It is over.
    pub ended: bool,
}

/// Why a process is nobody's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// It is in no pod.
    Host,
    /// Its pod was given no share.
    NoShare,
    /// Its pod was given a share that nothing is known of on this node.
    LostShare,
    /// Its pod has a card by another plugin.
    Foreign,
    /// It is in its pod, in no container that the API server told of.
    NoContainer,
    /// Its pod has a share, its container has none.
    OtherContainer,
    /// Its container has a share, of another card.
    OtherCard,
    /// Its container has this share, and it avoids the library that holds it.
    NoLibrary,
}

impl Reason {
    /// All.
    pub const ALL: [Self; 8] = [
        Self::Host,
        Self::NoShare,
        Self::LostShare,
        Self::Foreign,
        Self::NoContainer,
        Self::OtherContainer,
        Self::OtherCard,
        Self::NoLibrary,
    ];

    /// As metrics say it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::NoShare => "no-share",
            Self::LostShare => "lost-share",
            Self::NoContainer => "no-container",
            Self::Foreign => "foreign",
            Self::OtherContainer => "other-container",
            Self::OtherCard => "other-card",
            Self::NoLibrary => "no-library",
        }
    }

    /// Whether such a process may be ended or its pod evicted, where the administrator wants that:
    /// not where it is the node's owner's or another plugin's, or where it may be an honest one of
    /// which the host lost what it knew.
    pub fn is_ended(self) -> bool {
        !matches!(
            self,
            Self::Host | Self::Foreign | Self::LostShare | Self::NoContainer
        )
    }

    /// As events say it.
    pub fn words(self) -> &'static str {
        match self {
            Self::Host => "it is in no pod",
            Self::NoShare => "its pod has no share of a GPU",
            Self::LostShare => "nothing is known on this node of the share that its pod was given",
            Self::NoContainer => "it is in no container of its pod that is known",
            Self::Foreign => "its pod was given the GPU by another device plugin",
            Self::OtherContainer => "its container has no share of a GPU",
            Self::OtherCard => "its container has no share of this GPU",
            Self::NoLibrary => "it does not use the library that holds its container's limit",
        }
    }
}

/// Whose a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A container's: the place of its seat in the list, and of the device in the seat.
    Share(usize, usize),
    /// The same, and it avoids the library that holds the container.
    Loose(usize, usize),
    /// Nobody's.
    Nobody(Reason),
    /// A server of MPS, which holds nothing for itself.
    Server,
    /// Not known: the instance is new, the pod's share cannot be read, or what the driver calls
    /// the container's instances.
    Unknown,
    /// Not known: the API server has not told which container of the pod it is.
    Untold,
}

/// Whose a process is, whether it uses the library or not.
pub fn owner(one: &OnCard, seats: &[Seat], beside: &Beside) -> Owner {
    let place = &one.process.place;
    let Some(pod) = &place.pod else {
        let is_server = beside.servers.contains(&one.process.life.pid);
        return if is_server {
            Owner::Server
        } else {
            Owner::Nobody(Reason::Host)
        };
    };
    let of_pod: Vec<(usize, &Seat)> = seats
        .iter()
        .enumerate()
        .filter(|(_, seat)| seat.pod == *pod)
        .collect();
    if of_pod.is_empty() {
        if beside.accepted.contains(pod) {
            return Owner::Unknown;
        }
        if beside.own.as_ref() == Some(pod) || beside.servers.contains(&one.process.life.pid) {
            return Owner::Server;
        }
        if beside.unlisted {
            return Owner::Unknown;
        }
        let said = beside.pods.get(pod).copied().unwrap_or_default();
        return Owner::Nobody(match said {
            Said { foreign: true, .. } => Reason::Foreign,
            // No process of its was there before its share was stored.
            Said {
                allocated: true, ..
            } => Reason::LostShare,
            _ => Reason::NoShare,
        });
    }
    let id = place.container.clone().unwrap_or_default();
    let name = beside.containers.get(&(pod.clone(), id));
    // A pod with one share may have containers without one.
    let Some(name) = name else {
        return Owner::Untold;
    };
    let found = of_pod.iter().find(|(_, seat)| seat.container == *name);
    let Some((at, seat)) = found.copied() else {
        return Owner::Nobody(Reason::OtherContainer);
    };
    let called = beside.called.get(at).map_or(&[][..], Vec::as_slice);
    match device(one, &seat.devices, called, beside) {
        Some(device) => Owner::Share(at, device),
        None if is_new(one, beside) => Owner::Unknown,
        // Names of instances change at a reboot.
        None if called.is_empty() && seat.devices.iter().any(is_instance) => Owner::Unknown,
        None => Owner::Nobody(Reason::OtherCard),
    }
}

fn is_instance(device: &Device) -> bool {
    device.uuid.as_str().starts_with("MIG-")
}

/// On an instance that was made since the cards were read.
pub(crate) fn is_new(one: &OnCard, beside: &Beside) -> bool {
    one.instance.is_some_and(|numbers| {
        let key = (one.card.clone(), numbers);
        !beside.instances.contains_key(&key)
    })
}

/// Which of a container's devices a process is on; `called` is what the driver calls them now.
fn device(one: &OnCard, devices: &[Device], called: &[String], beside: &Beside) -> Option<usize> {
    let card = one.card.as_str();
    let Some(numbers) = one.instance else {
        return devices
            .iter()
            .position(|device| device.uuid.as_str() == card);
    };
    let known = beside.instances.get(&(card.to_owned(), numbers));
    let by_uuid = || {
        let uuid = &known?.uuid;
        let now = called.iter().position(|name| name == uuid);
        let booked = || devices.iter().position(|one| one.uuid.as_str() == uuid);
        now.filter(|at| *at < devices.len()).or_else(booked)
    };
    let made_for_it = || {
        devices.iter().position(|device| {
            let profile = device.profile.as_deref();
            let same = profile == known.map(|known| known.profile.as_str());
            device.uuid.as_str() == card && profile.is_some() && same
        })
    };
    by_uuid().or_else(made_for_it)
}

#[cfg(test)]
#[path = "attribute_tests.rs"]
mod tests;
