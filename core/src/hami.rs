//! HAMi's own annotations, for clusters that migrate node by node: what its scheduler
//! allocated to a pod and what its device plugin registered for a node (HAMi 3.1, 4.11).
//!
//!
//! Unlike in HAMi, what cannot be read is an error and never counts as free, and a pod's
//! effective use follows [`crate::usage`].

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Deserialize;
use thiserror::Error;

use crate::allocation::{Allocation, CodecError};
use crate::excerpt::Excerpt;
use crate::id::GpuUuid;
use crate::inventory::{self, Gpu, Health, Inventory, Mode};
use crate::units::{Mib, Percent};
use crate::usage::{self, DeviceUse, DeviceUses, Stage};

/// The pod annotation with the devices of each container.
pub const ALLOCATED: &str = "hami.io/vgpu-devices-allocated";
/// The pod annotation with the node they are on.
pub const NODE: &str = "hami.io/vgpu-node";
/// The pod annotations that HAMi's scheduler and device plugin write, and nobody else.
pub const WRITTEN: [&str; 7] = [
    ALLOCATED,
    NODE,
    "hami.io/vgpu-devices-to-allocate",
    "hami.io/vgpu-mig-allocations",
    "hami.io/vgpu-time",
    "hami.io/bind-phase",
    "hami.io/bind-time",
];
/// The node annotation with the node's devices.
pub const REGISTER: &str = "hami.io/node-nvidia-register";

/// The vendor field of a share.
const VENDOR: &str = "NVIDIA";

/// A share of a device as HAMi writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HamiShare {
    /// The GPU. A MIG instance counts on its GPU.
    pub gpu: GpuUuid,
    /// Memory on it.
    pub memory: Mib,
    /// Compute on it.
    pub cores: Percent,
}

/// Why [`ALLOCATED`] cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HamiError {
    /// Not a share.
    #[error("{share:?} is not a share; expected: UUID,TYPE,MIB,PERCENT")]
    Share {
        /// The text between two colons.
        share: Excerpt,
    },
    /// Another number of containers than the pod has.
    #[error("shares of {found} containers; expected: one list for each of the pod's {pod}")]
    Containers {
        /// The number in the text.
        found: usize,
        /// The number of the pod.
        pod: usize,
    },
}

/// Reads [`ALLOCATED`]: the shares of each container. `:` ends a share and `;` a container.
pub fn decode(text: &str) -> Result<Vec<Vec<HamiShare>>, HamiError> {
    let text = text.strip_suffix(';').unwrap_or(text);
    let shares = |container: &str| {
        let shares = container.split(':').filter(|share| !share.is_empty());
        shares.map(share).collect()
    };
    text.split(';').map(shares).collect()
}

fn share(text: &str) -> Result<HamiShare, HamiError> {
    let refused = || HamiError::Share { share: text.into() };
    let mut fields = text.split(',');
    let mut next = || fields.next().ok_or_else(refused);
    let (uuid, _vendor, memory, cores) = (next()?, next()?, next()?, next()?);
    // Before 2.10 an instance was written as `GPU-…[0-1]`.
    let device = uuid.split('[').next().unwrap_or(uuid);
    if device.is_empty() {
        return Err(refused());
    }
    Ok(HamiShare {
        gpu: device.into(),
        memory: Mib(memory.parse().map_err(|_| refused())?),
        cores: Percent(cores.parse().map_err(|_| refused())?),
    })
}

/// What a pod with these containers (init containers first) uses of each device by
/// [`ALLOCATED`]. HAMi before 2.6 lists the app containers only.
pub fn uses(text: &str, stages: &[Stage]) -> Result<DeviceUses, HamiError> {
    let containers = decode(text)?;
    let apps: Vec<Stage> = stages
        .iter()
        .copied()
        .filter(|s| *s == Stage::App)
        .collect();
    let stages = match containers.len() {
        all if all == stages.len() => stages,
        found if found == apps.len() => &apps,
        _ if containers.iter().all(Vec::is_empty) => return Ok(DeviceUses::new()),
        found => {
            let pod = stages.len();
            return Err(HamiError::Containers { found, pod });
        }
    };
    let mut devices: BTreeMap<GpuUuid, Vec<(Stage, DeviceUse)>> = BTreeMap::new();
    for (stage, shares) in stages.iter().zip(containers) {
        let mut own: BTreeMap<GpuUuid, DeviceUse> = BTreeMap::new();
        for HamiShare { gpu, memory, cores } in shares {
            let used = own.entry(gpu).or_default();
            *used = used.with(DeviceUse::of(memory, cores));
        }
        for (gpu, used) in own {
            devices.entry(gpu).or_default().push((*stage, used));
        }
    }
    let devices = devices.into_iter();
    Ok(devices
        .map(|(gpu, all)| (gpu, usage::on_device(all)))
        .collect())
}

/// Writes [`ALLOCATED`] for an allocation, its containers in the pod's order.
pub fn encode<'a>(allocation: &Allocation, containers: impl Iterator<Item = &'a str>) -> String {
    let mut text = String::new();
    for container in containers {
        for grant in allocation.grants(container).unwrap_or_default() {
            let (gpu, memory, cores) = (&grant.gpu, grant.memory.0, grant.cores.0);
            // Writing to a string cannot fail.
            let _ = write!(text, "{gpu},{VENDOR},{memory},{cores}:");
        }
        text.push(';');
    }
    text
}

/// A device as HAMi's plugin registers it. Zeros and `false` are omitted.
#[derive(Deserialize)]
#[serde(default)]
struct HamiDevice {
    id: GpuUuid,
    index: u32,
    count: u32,
    devmem: Mib,
    devcore: Percent,
    #[serde(rename = "type")]
    model: String,
    numa: u32,
    mode: String,
    health: bool,
}

impl Default for HamiDevice {
    fn default() -> Self {
        Self {
            id: "".into(),
            index: 0,
            count: 0,
            devmem: Mib(0),
            devcore: Percent(0),
            model: String::new(),
            numa: 0,
            mode: String::new(),
            health: false,
        }
    }
}

/// Devices as `id,count,memory,cores,model,numa,health:` each.
fn old_devices(text: &str) -> Result<Vec<HamiDevice>, serde_json::Error> {
    let expected = |part: &str| {
        let what = format!(
            "{:?} is not id,count,memory,cores,model,numa,health",
            Excerpt::from(part)
        );
        <serde_json::Error as serde::de::Error>::custom(what)
    };
    let parts = text.split(':').map(str::trim).filter(|one| !one.is_empty());
    let device = |(index, part): (u32, &str)| {
        let fields: Vec<&str> = part.split(',').collect();
        let [id, count, memory, cores, model, numa, health] = fields[..] else {
            return Err(expected(part));
        };
        let bad = |_| expected(part);
        Ok(HamiDevice {
            id: id.into(),
            index,
            count: count.parse().map_err(bad)?,
            devmem: Mib(memory.parse().map_err(bad)?),
            devcore: Percent(cores.parse().map_err(bad)?),
            model: model.to_owned(),
            numa: numa.parse().map_err(bad)?,
            mode: String::new(),
            health: health == "true",
        })
    };
    let devices: Vec<HamiDevice> = (0..).zip(parts).map(device).collect::<Result<_, _>>()?;
    if devices.is_empty() {
        return Err(expected(text));
    }
    Ok(devices)
}

/// Reads [`REGISTER`]: JSON, or the form of HAMi before 2.5. The inventory reads no allocation
/// version: it is shown, and nothing is placed on it.
pub fn register(text: &str) -> Result<Inventory, CodecError> {
    let devices = if text.trim_start().starts_with('[') {
        serde_json::from_str(text)
    } else {
        old_devices(text)
    };
    let devices: Vec<HamiDevice> = devices.map_err(|source| CodecError::Decode { source })?;
    let mut gpus: Vec<Gpu> = devices.into_iter().map(gpu).collect();
    // HAMi's order varies.
    gpus.sort_by(|a, b| (a.index, &a.uuid).cmp(&(b.index, &b.uuid)));
    let inventory = Inventory {
        v: inventory::VERSION,
        reads: Vec::new(),
        driver: String::new(),
        topology_policy: String::new(),
        topology_scope: crate::inventory::TopologyScope::default(),
        gpus,
        lingering: Vec::new(),
        foreign: Vec::new(),
        refused: Vec::new(),
        evict: Vec::new(),
        unmeasured: Vec::new(),
        unreadable: Vec::new(),
        resizes: Vec::new(),
    };
    inventory.reject_duplicates()
}

fn gpu(device: HamiDevice) -> Gpu {
    Gpu {
        uuid: device.id,
        index: device.index,
        model: device.model,
        memory: device.devmem,
        scaled: device.devmem,
        cores: device.devcore,
        replicas: device.count,
        mode: match device.mode.as_str() {
            "hami-core" | "" => Mode::Vgpu,
            "mig" => Mode::Mig,
            "mps" => Mode::Mps,
            _ => Mode::Unknown,
        },
        // The default name; nothing is placed by it.
        resource: "nvidia.com/gpu".to_owned(),
        numa: Some(device.numa),
        health: if device.health {
            Health::Ok
        } else {
            Health::Unhealthy("unhealthy at HAMi".to_owned())
        },
        links: BTreeMap::new(),
        mig: None,
        cordon: None,
        even_share: None,
        strict: false,
        reserved: Vec::new(),
    }
}
