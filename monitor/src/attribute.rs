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
    /// Pods that are known here, with or without a share; those whose card came from another
    /// plugin.
    pub pods: BTreeMap<PodUid, bool>,
    /// Instances, by card and the driver's numbers.
    pub instances: BTreeMap<(String, (u32, u32)), Instance>,
    /// Servers and daemons of MPS.
    pub servers: BTreeSet<u32>,
    /// Pods that were given a share, also one that cannot be read.
    pub accepted: BTreeSet<PodUid>,
    /// There may be pods with a share that are not known.
    pub unlisted: bool,
}

/// Why a process is nobody's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// It is in no pod.
    Host,
    /// Its pod was given no share.
    NoShare,
    /// Its pod has a card by another plugin.
    Foreign,
    /// Its pod has a share, its container has none.
    OtherContainer,
    /// Its container has a share, of another card.
    OtherCard,
    /// Its container has this share, and it avoids the library that holds it.
    NoLibrary,
}

impl Reason {
    /// All.
    pub const ALL: [Self; 6] = [
        Self::Host,
        Self::NoShare,
        Self::Foreign,
        Self::OtherContainer,
        Self::OtherCard,
        Self::NoLibrary,
    ];

    /// As metrics say it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::NoShare => "no-share",
            Self::Foreign => "foreign",
            Self::OtherContainer => "other-container",
            Self::OtherCard => "other-card",
            Self::NoLibrary => "no-library",
        }
    }

    /// As events say it.
    pub fn words(self) -> &'static str {
        match self {
            Self::Host => "it is in no pod",
            Self::NoShare => "its pod has no share of a GPU",
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
    /// Not known: the API server has not told which container of the pod it is, the instance is
    /// new, or the pod's share cannot be read.
    Unknown,
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
        if beside.servers.contains(&one.process.life.pid) {
            return Owner::Server;
        }
        if beside.unlisted {
            return Owner::Unknown;
        }
        let foreign = beside.pods.get(pod).copied().unwrap_or(false);
        let reason = if foreign {
            Reason::Foreign
        } else {
            Reason::NoShare
        };
        return Owner::Nobody(reason);
    }
    let id = place.container.clone().unwrap_or_default();
    let name = beside.containers.get(&(pod.clone(), id));
    // A pod with one share may have containers without one.
    let Some(name) = name else {
        return Owner::Unknown;
    };
    let found = of_pod.iter().find(|(_, seat)| seat.container == *name);
    let Some((at, seat)) = found.copied() else {
        return Owner::Nobody(Reason::OtherContainer);
    };
    match device(one, &seat.devices, beside) {
        Some(device) => Owner::Share(at, device),
        None if is_new(one, beside) => Owner::Unknown,
        None => Owner::Nobody(Reason::OtherCard),
    }
}

/// On an instance that was made since the cards were read.
pub(crate) fn is_new(one: &OnCard, beside: &Beside) -> bool {
    one.instance.is_some_and(|numbers| {
        let key = (one.card.clone(), numbers);
        !beside.instances.contains_key(&key)
    })
}

/// Which of a container's devices a process is on.
fn device(one: &OnCard, devices: &[Device], beside: &Beside) -> Option<usize> {
    let card = one.card.as_str();
    let Some(numbers) = one.instance else {
        return devices
            .iter()
            .position(|device| device.uuid.as_str() == card);
    };
    let known = beside.instances.get(&(card.to_owned(), numbers));
    let by_uuid = || {
        let uuid = &known?.uuid;
        devices
            .iter()
            .position(|device| device.uuid.as_str() == uuid)
    };
    let made_for_it = || {
        devices.iter().position(|device| {
            let profile = device.profile.as_deref();
            let same = profile == known.map(|known| known.profile.as_str());
            device.uuid.as_str() == card && profile.is_some() && same
        })
    };
    // One that is called by a name of before the last reboot.
    let renamed = || {
        let mut cut = devices
            .iter()
            .enumerate()
            .filter(|(_, device)| device.uuid.as_str().starts_with("MIG-"));
        let first = cut.next()?;
        cut.next().is_none().then_some(first.0)
    };
    by_uuid().or_else(made_for_it).or_else(renamed)
}

#[cfg(test)]
#[path = "attribute_tests.rs"]
mod tests;
