//! HAMi's own annotations, for clusters that move node by node: what its
//! scheduler gave a pod and what its plugin registered for a node (HAMi 3.1, 4.11).
//!
//! Fed by: `aliquot-k8s`, with pods and nodes that have none of our annotations.
//! Must not: take for free what it cannot read (HAMi does), or follow HAMi where
//! it adds up a pod: [`crate::usage`] says what counts.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Deserialize;
use thiserror::Error;

use crate::allocation::{Allocation, CodecError};
use crate::demand::Stage;
use crate::id::GpuUuid;
use crate::inventory::{self, Gpu, Health, Inventory, Mode};
use crate::units::{Mib, Percent};
use crate::usage::{self, Use, Uses};

/// The pod annotation with the cards of each container.
pub const ALLOCATED: &str = "hami.io/vgpu-devices-allocated";
/// The pod annotation with the node they are on.
pub const NODE: &str = "hami.io/vgpu-node";
/// The node annotation with the node's cards.
pub const REGISTER: &str = "hami.io/node-nvidia-register";

/// The vendor word in front of a share.
const VENDOR: &str = "NVIDIA";

/// A share of a card as HAMi writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// The card. A MIG instance counts on its card.
    pub gpu: GpuUuid,
    /// Memory on it.
    pub memory: Mib,
    /// Compute on it.
    pub cores: Percent,
}

/// Why [`ALLOCATED`] cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HamiError {
    /// A share that is not one.
    #[error("{share:?} is not a share; accepted: UUID,TYPE,MIB,PERCENT")]
    Share {
        /// The text between two colons.
        share: String,
    },
    /// Other containers than the pod has.
    #[error("shares of {found} containers; accepted: one list for each of the pod's {pod}")]
    Containers {
        /// In the text.
        found: usize,
        /// Of the pod.
        pod: usize,
    },
}

/// Reads [`ALLOCATED`]: for each container its shares. `:` ends a share and `;`
/// a container.
pub fn decode(text: &str) -> Result<Vec<Vec<Share>>, HamiError> {
    let text = text.strip_suffix(';').unwrap_or(text);
    let shares = |container: &str| {
        let shares = container.split(':').filter(|share| !share.is_empty());
        shares.map(share).collect()
    };
    text.split(';').map(shares).collect()
}

fn share(text: &str) -> Result<Share, HamiError> {
    let refused = || HamiError::Share {
        share: text.to_owned(),
    };
    let mut fields = text.split(',');
    let mut next = || fields.next().ok_or_else(refused);
    let (uuid, _vendor, memory, cores) = (next()?, next()?, next()?, next()?);
    // Before 2.10 an instance was written as `GPU-…[0-1]`.
    let card = uuid.split('[').next().unwrap_or(uuid);
    if card.is_empty() {
        return Err(refused());
    }
    Ok(Share {
        gpu: card.into(),
        memory: Mib(memory.parse().map_err(|_| refused())?),
        cores: Percent(cores.parse().map_err(|_| refused())?),
    })
}

/// What a pod with these containers (init containers first) holds of each card
/// by [`ALLOCATED`]. HAMi before 2.6 lists the app containers only.
pub fn uses(text: &str, stages: &[Stage]) -> Result<Uses, HamiError> {
    let containers = decode(text)?;
    let apps: Vec<Stage> = stages
        .iter()
        .copied()
        .filter(|s| *s == Stage::App)
        .collect();
    let stages = match containers.len() {
        all if all == stages.len() => stages,
        found if found == apps.len() => &apps,
        _ if containers.iter().all(Vec::is_empty) => return Ok(Uses::new()),
        found => {
            let pod = stages.len();
            return Err(HamiError::Containers { found, pod });
        }
    };
    let mut cards: BTreeMap<GpuUuid, Vec<(Stage, Use)>> = BTreeMap::new();
    for (stage, shares) in stages.iter().zip(containers) {
        let mut own: BTreeMap<GpuUuid, Use> = BTreeMap::new();
        for Share { gpu, memory, cores } in shares {
            let used = own.entry(gpu).or_default();
            *used = used.with(Use::of(memory, cores));
        }
        for (gpu, used) in own {
            cards.entry(gpu).or_default().push((*stage, used));
        }
    }
    let cards = cards.into_iter();
    Ok(cards.map(|(gpu, all)| (gpu, usage::on_card(all))).collect())
}

/// [`ALLOCATED`] for an allocation of ours, its containers in the pod's order.
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

/// A card as HAMi's plugin registers it. It leaves out zeros and `false`.
#[derive(Deserialize)]
#[serde(default)]
struct Registered {
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

impl Default for Registered {
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

/// Reads [`REGISTER`]. The inventory reads no allocation of ours: it is shown,
/// never placed on.
pub fn register(text: &str) -> Result<Inventory, CodecError> {
    let cards: Vec<Registered> =
        serde_json::from_str(text).map_err(|source| CodecError::Decode { source })?;
    let mut gpus: Vec<Gpu> = cards.into_iter().map(gpu).collect();
    // HAMi writes them in another order each time.
    gpus.sort_by(|a, b| (a.index, &a.uuid).cmp(&(b.index, &b.uuid)));
    let inventory = Inventory {
        v: inventory::VERSION,
        reads: Vec::new(),
        driver: String::new(),
        topology_policy: String::new(),
        topology_scope: crate::inventory::Scope::default(),
        gpus,
        lingering: Vec::new(),
        foreign: Vec::new(),
        refused: Vec::new(),
        evict: Vec::new(),
    };
    inventory.with_each_card_once()
}

fn gpu(card: Registered) -> Gpu {
    Gpu {
        uuid: card.id,
        index: card.index,
        model: card.model,
        memory: card.devmem,
        scaled: card.devmem,
        cores: card.devcore,
        seats: card.count,
        mode: match card.mode.as_str() {
            "hami-core" | "" => Mode::Vgpu,
            "mig" => Mode::Mig,
            "mps" => Mode::Mps,
            _ => Mode::Unknown,
        },
        // Its default name; nothing is placed by it.
        resource: "nvidia.com/gpu".to_owned(),
        numa: Some(card.numa),
        health: if card.health {
            Health::Ok
        } else {
            Health::Sick("unhealthy at HAMi".to_owned())
        },
        links: BTreeMap::new(),
        mig: None,
        cordon: None,
        even: None,
        strict: false,
        reserved: Vec::new(),
    }
}
