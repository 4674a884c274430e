//! Seats and processes for tests.

use aliquot_core::inventory::Mode;
use aliquot_core::{Mib, Percent};
use aliquot_k8s::event::PodRef;

use crate::attribute::{OnCard, Said};
use crate::cgroup::Place;
use crate::pods::Pod;
use crate::processes::{Known, Life};
use crate::seats::{Device, Effective, Seat};

/// A device of 3000 MiB and 30 percent.
pub(crate) fn device(uuid: &str) -> Device {
    Device {
        uuid: uuid.into(),
        memory: Mib(3000),
        cores: Percent(30),
        mode: Mode::Vgpu,
        profile: None,
    }
}

/// A seat of a container, held by the library.
pub(crate) fn seat(name: &str, pod: &str, container: &str, devices: &[&str]) -> Seat {
    Seat {
        name: name.to_owned(),
        pod: pod.into(),
        namespace: "default".to_owned(),
        pod_name: format!("pod-{pod}"),
        container: container.to_owned(),
        devices: devices.iter().map(|uuid| device(uuid)).collect(),
        priority: 1,
        effective: Effective {
            oom_killer: true,
            ..Effective::default()
        },
        limited: true,
        folder: format!("/nonexistent/{name}").into(),
    }
}

/// A process in a container, or outside every pod.
pub(crate) fn process(pid: u32, pod: Option<&str>, container: &str) -> Known {
    Known {
        life: Life { pid, start: 1 },
        place: Place {
            pod: pod.map(Into::into),
            container: pod.map(|_| container.to_owned()),
            path: format!("/kubepods/{pod:?}/{container}"),
        },
        inner: Some(pid % 1000),
        going: false,
    }
}

/// That process on a card.
pub(crate) fn on_card(card: &str, process: Known, bytes: u64) -> OnCard {
    OnCard {
        card: card.to_owned(),
        instance: None,
        bytes,
        process,
    }
}

/// A pod with these containers: the runtime's id and the name of each.
pub(crate) fn pod(uid: &str, containers: &[(&str, &str)]) -> Pod {
    let containers = containers.iter();
    Pod {
        named: PodRef {
            namespace: "default".to_owned(),
            name: format!("pod-{uid}"),
            uid: uid.to_owned(),
        },
        said: Said::default(),
        containers: containers
            .map(|(id, name)| ((*id).to_owned(), (*name).to_owned()))
            .collect(),
    }
}
