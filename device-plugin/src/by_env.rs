//! Handing shares over without CDI, for runtimes that have none: what Allocate says at once, and
//! whether that is what the pod was given.
//!
//! Fed by: the seats of one call, the node; answers in the kubelet's checkpoint. Must not: hand
//! over what is known only with the pod (a share through MPS, an instance that is not made yet).

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use aliquot_core::inventory::Mode;
use aliquot_core::{GpuUuid, Grant};
use clap::ValueEnum;

use crate::accepted::Accepted;
use crate::capabilities::{self, Allowed};
use crate::checkpoint::Entry;
use crate::dress;
use crate::environment::{COUNTERS, DIRECTORY, SHARED_CACHE, VISIBLE};
use crate::files::{self, FileError};
use crate::host::{self, Card};
use crate::inventory::Node;
use crate::judge::{ByEnv, Refusal};
use crate::pod::Pod;
use crate::prestart::PreStart;
use crate::proto::v1beta1 as api;
use crate::seat::{Ids, Name, Seat};
use crate::settings::Paths;
use crate::way_in::{PRELOAD, PRELOAD_FILE};

/// Where NVIDIA's runtime looks for GPUs that are named by mounts, which no image can make.
const VOLUMES: &str = "/var/run/nvidia-container-devices";
/// What is mounted there.
const NOTHING: &str = "/dev/null";

/// How Allocate hands GPUs over; the words of NVIDIA's `deviceListStrategy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DeviceList {
    /// By CDI; where that is known to be off, as NVIDIA's container runtime takes them, if that
    /// starts the containers. Chosen when the agent starts.
    Auto,
    /// By the name of a CDI spec, which is written when the pod is known.
    #[default]
    Cdi,
    /// By `NVIDIA_VISIBLE_DEVICES`, for NVIDIA's container runtime.
    Envvar,
    /// The same, the GPUs by mounts, which a pod's environment does not overrule.
    VolumeMounts,
}

impl DeviceList {
    /// As it is written.
    pub fn word(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Cdi => "cdi",
            Self::Envvar => "envvar",
            Self::VolumeMounts => "volume-mounts",
        }
    }
}

impl Node {
    /// How containers that come now get their GPUs; `None`: that is not known yet.
    pub fn handed(&self) -> Option<DeviceList> {
        self.runtime.as_ref()?.handed
    }
}

/// What an answer without CDI named at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The units, as the driver called them then.
    pub visible: BTreeSet<String>,
    /// By mounts, which no environment overrules.
    pub mounted: bool,
    /// The loader is told to preload our library.
    pub preloads: bool,
}

/// Longest wait for a choice; after it containers are told of CDI, and wait for it if it is off.
const CHOICE: Duration = Duration::from_secs(10);

impl PreStart {
    /// Waits until it is known how GPUs are handed over. What a container was told stays, and in
    /// its first second the agent has not looked at the container runtime.
    pub(crate) async fn chosen(&self) {
        if self.device_list == DeviceList::Auto {
            let mut node = self.published.subscribe();
            let known = node.wait_for(|node| node.handed().is_some());
            let _late = tokio::time::timeout(CHOICE, known).await;
        }
    }

    /// What the kubelet is told to give the container that gets these seats.
    pub(crate) fn hand_over(&self, name: &Name, ids: &Ids) -> api::ContainerAllocateResponse {
        let node = self.published.get();
        let list = match self.device_list {
            DeviceList::Auto => node.handed().unwrap_or_default(),
            told => told,
        };
        if list == DeviceList::Cdi {
            let name = name.qualified();
            return api::ContainerAllocateResponse {
                cdi_devices: vec![api::CdiDevice { name }],
                ..api::ContainerAllocateResponse::default()
            };
        }
        let limits = self.limiter.is_some();
        answer(list, name, ids, &node, &self.paths, limits)
    }

    /// What Allocate named, before the pod was known, is what each container was given.
    pub(crate) fn named_rightly(
        &self,
        accepted: &Accepted,
        holders: &[Entry],
        node: &Node,
        pod: Option<&Pod>,
    ) -> Result<(), Refusal> {
        for holders in dress::containers(holders) {
            let grants = accepted.allocation.grants(&holders[0].container);
            let mode = |unit: &GpuUuid| accepted.mode(unit);
            let grants = grants.unwrap_or_default();
            let limits = self.limiter.is_some();
            named_rightly(&holders, grants, mode, node, limits, pod).map_err(Refusal::ByEnv)?;
        }
        Ok(())
    }
}

fn answer(
    list: DeviceList,
    name: &Name,
    ids: &Ids,
    node: &Node,
    paths: &Paths,
    limits: bool,
) -> api::ContainerAllocateResponse {
    let units: BTreeSet<GpuUuid> = ids
        .iter()
        .filter_map(|id| Some(Seat::parse(id)?.gpu))
        .collect();
    let units = units.iter().filter_map(|unit| node.inventory.gpu(unit));
    // Which instance, or which daemon, is known with the pod.
    let now = |mode: Mode| !matches!(mode, Mode::Mig | Mode::Mps);
    let units: Vec<_> = units.filter(|unit| now(unit.mode)).collect();
    let cards = units.iter().filter_map(|unit| node.cards.get(&unit.uuid));
    let cards: Vec<Card> = cards.cloned().collect();
    let allowed = Allowed::of_all(units.iter().copied(), &node.arrangement);
    let seat = paths.seats.join(name.as_str()).display().to_string();
    let mount = |host: String, container: &str, read_only| api::Mount {
        container_path: container.to_owned(),
        host_path: host,
        read_only,
    };
    let mut mounts = vec![
        mount(seat.clone(), DIRECTORY, true),
        mount(format!("{seat}/counters/slots"), COUNTERS, false),
    ];
    let mut envs = Vec::new();
    if let Some(allowed) = allowed {
        envs.push((capabilities::VARIABLE, allowed.words().join(",")));
        if limits {
            envs.push((SHARED_CACHE, COUNTERS.to_owned()));
            mounts.push(mount(format!("{seat}/{PRELOAD_FILE}"), PRELOAD, true));
        }
    }
    let visible: Vec<&str> = cards.iter().map(Card::current).collect();
    if list == DeviceList::VolumeMounts {
        let device = |id| mount(NOTHING.to_owned(), &format!("{VOLUMES}/{id}"), false);
        mounts.extend(visible.iter().map(device));
        envs.push((VISIBLE, VOLUMES.to_owned()));
    } else if visible.is_empty() {
        envs.push((VISIBLE, "void".to_owned()));
    } else {
        envs.push((VISIBLE, visible.join(",")));
    }
    let root = paths.driver_root.as_ref();
    let nodes = host::driver(&[], root, &paths.capabilities, &cards).edits;
    let devices = nodes.device_nodes.iter().filter_map(|node| {
        let path = node["path"].as_str()?;
        Some(api::DeviceSpec {
            container_path: path.to_owned(),
            host_path: node["hostPath"].as_str().unwrap_or(path).to_owned(),
            permissions: "rw".to_owned(),
        })
    });
    api::ContainerAllocateResponse {
        envs: envs.into_iter().map(|(k, v)| (k.to_owned(), v)).collect(),
        mounts,
        devices: devices.collect(),
        ..api::ContainerAllocateResponse::default()
    }
}

/// Our name in an answer without CDI, and what that named; `None`: it is not ours.
pub fn read(answer: &api::ContainerAllocateResponse) -> Option<(Name, Named)> {
    let at = |path: &str| answer.mounts.iter().find(|one| one.container_path == path);
    let seat = Path::new(&at(DIRECTORY)?.host_path);
    let name = Name::parse(seat.file_name()?.to_str()?)?;
    let listed = answer.envs.get(VISIBLE).map_or("", String::as_str);
    let mounted = answer.mounts.iter().filter_map(|mount| {
        let rest = mount.container_path.strip_prefix(VOLUMES)?;
        rest.strip_prefix('/')
    });
    let is_mounted = listed == VOLUMES;
    let visible: BTreeSet<String> = if is_mounted {
        mounted.map(str::to_owned).collect()
    } else {
        listed.split(',').map(str::to_owned).collect()
    };
    let preloads = at(PRELOAD).is_some();
    let named = Named {
        visible,
        mounted: is_mounted,
        preloads,
    };
    Some((name, named))
}

/// The same of one container: `holders` are its entries, `mode` says how a unit was shared when
/// the pod was accepted, `limits` whether this node holds limits.
fn named_rightly(
    holders: &[&Entry],
    grants: &[Grant],
    mode: impl Fn(&GpuUuid) -> Mode,
    node: &Node,
    limits: bool,
    pod: Option<&Pod>,
) -> Result<(), ByEnv> {
    let Some(named) = holders.iter().find_map(|holder| holder.by_env.as_ref()) else {
        return Ok(());
    };
    let container = &holders[0].container;
    let needs = |what| ByEnv::NeedsCdi(container.clone(), what);
    if holders.len() > 1 {
        return Err(needs("shares of two resources"));
    }
    if grants.iter().any(|grant| grant.mig.is_some()) {
        return Err(needs("a MIG instance that is made for it"));
    }
    if grants.iter().any(|grant| mode(&grant.gpu) == Mode::Mps) {
        return Err(needs("a share through MPS"));
    }
    let current = |grant: &Grant| {
        let card = node.cards.get(&grant.gpu);
        card.map_or_else(|| grant.gpu.to_string(), |card| card.current().to_owned())
    };
    let given: BTreeSet<String> = grants.iter().map(current).collect();
    if given != named.visible {
        return Err(ByEnv::Other {
            container: container.clone(),
            named: named.visible.iter().cloned().collect(),
            given: given.into_iter().collect(),
        });
    }
    let shared = grants.iter().any(|grant| mode(&grant.gpu) == Mode::Vgpu);
    if shared && limits && !named.preloads {
        return Err(ByEnv::Unlimited(container.clone()));
    }
    // A pod's own environment wins over what the kubelet was told.
    let own = pod.and_then(|pod| pod.containers.iter().find(|one| one.name == *container));
    if !named.mounted && own.is_some_and(|own| own.env_from) {
        return Err(ByEnv::FromElsewhere(container.clone()));
    }
    let units = grants.iter().filter_map(|g| node.inventory.gpu(&g.gpu));
    let Some(allowed) = Allowed::of_all(units, &node.arrangement) else {
        return Ok(());
    };
    let own = own.and_then(|own| own.env.get(capabilities::VARIABLE));
    match own.and_then(|own| allowed.beyond(own)) {
        None => Ok(()),
        Some(word) => Err(ByEnv::Capability {
            container: container.clone(),
            word: word.to_owned(),
            accepted: allowed.words().join(","),
        }),
    }
}

/// Completes a seat whose mounts were named before it was made: a list to preload is there, empty
/// where nothing limits the container.
pub(crate) fn settle(seat: &Path, named: &Named) -> Result<(), FileError> {
    let list = seat.join(PRELOAD_FILE);
    if named.preloads && !list.exists() {
        files::put(&list, b"")?;
    }
    Ok(())
}

#[cfg(test)]
#[path = "by_env_tests.rs"]
mod tests;
