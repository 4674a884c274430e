//! What nodes and cards have, have promised, and could still promise.
//!
//! Fed by: the scheduler's `GET /top`, and `kubectl-aliquot top` where the
//! scheduler cannot be reached.
//! Must not: judge by rules of its own; what still fits is asked of
//! [`Card::refuse`], as [`crate::fit`] does.

use serde::{Deserialize, Serialize};

use crate::cut::{self, Cut};
use crate::id::{GpuUuid, NodeName};
use crate::inventory::{Gpu, Inventory, Mode};
use crate::mig::Instance;
use crate::mig::published::{self, Mig};
use crate::node::{Card, NodeState};
use crate::reason::Reason;
use crate::units::{Mib, Percent};
use crate::usage::Use;

/// Seats, memory in MiB, compute in percent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amount {
    /// Shares at once.
    pub seats: u32,
    /// Memory.
    pub memory: Mib,
    /// Compute.
    pub cores: Percent,
}

impl From<Use> for Amount {
    fn from(used: Use) -> Self {
        Self {
            seats: used.seats,
            memory: used.memory,
            cores: used.cores,
        }
    }
}

impl Amount {
    /// What the card may promise in all.
    pub fn total(card: &Card) -> Self {
        Self {
            seats: card.seats,
            memory: card.scaled,
            cores: card.cores,
        }
    }

    /// What nobody was promised; nothing of a card that takes no new share.
    pub fn left(card: &Card) -> Self {
        if card.closed.is_some() {
            return Self::default();
        }
        let used = &card.sums.used;
        Self {
            seats: card.seats.saturating_sub(used.seats),
            memory: Mib(card.scaled.0.saturating_sub(used.memory.0)),
            cores: Percent(card.cores.0.saturating_sub(used.cores.0)),
        }
    }

    /// Both together.
    pub fn plus(self, other: Self) -> Self {
        Self {
            seats: self.seats + other.seats,
            memory: self.memory + other.memory,
            cores: self.cores + other.cores,
        }
    }
}

/// The most memory that one share with this much compute could have of the card
/// now; `None` where not even the smallest fits.
pub fn largest(card: &Card, cores: Percent) -> Option<Mib> {
    let left = Amount::left(card).memory;
    let fits = |memory| card.refuse(&Use::of(memory, cores)).is_none();
    (left > Mib(0) && fits(left)).then_some(left)
}

/// What a node's agent calls lingering on a card: shares whose processes outlive
/// their pods. They are part of what is used once the pod is gone from the books.
pub fn lingering(inventory: &Inventory, gpu: &GpuUuid) -> Amount {
    let all = inventory.lingering.iter();
    let shares = all.filter(|left| left.card() == gpu.as_str());
    shares.fold(Amount::default(), |sum, left| sum.plus(left.used().into()))
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeTop {
    /// Which node.
    pub node: NodeName,
    /// Why it takes no pod of ours at all.
    pub closed: Option<String>,
    /// Its cards, by index.
    pub gpus: Vec<GpuTop>,
}

/// A card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuTop {
    /// Which card.
    pub gpu: GpuUuid,
    /// NVML's index.
    pub index: u32,
    /// NVML's product name.
    pub model: String,
    /// How it is shared.
    #[serde(default = "vgpu")]
    pub mode: Mode,
    /// The resource of its seats; of a card that is cut as pods come, nothing.
    #[serde(default)]
    pub resource: String,
    /// Its instances, of a card that is cut as pods come; itself, of an instance.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub instances: Vec<InstanceTop>,
    /// Why it takes no new share.
    pub closed: Option<String>,
    /// How many pods hold a share.
    pub pods: u32,
    /// What it may promise.
    pub total: Amount,
    /// What is promised, lingering shares included.
    pub used: Amount,
    /// What is left.
    pub left: Amount,
    /// Of what is used: shares that outlived their pods.
    pub lingering: Amount,
    /// The most memory that a share with `gpucores: 0` could have now; that of the
    /// largest instance, of a card that is cut as pods come.
    pub largest: Option<Mib>,
    /// The same for a share with the default compute.
    pub largest_with_default_cores: Option<Mib>,
}

/// An instance of a card.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct InstanceTop {
    /// Its first memory slice.
    pub start: u8,
    /// As the driver names it.
    pub profile: String,
    /// A pod holds it; otherwise it is there for the next who asks for its profile.
    pub held: bool,
    /// Its uuid, once it is made.
    pub uuid: Option<GpuUuid>,
}

fn vgpu() -> Mode {
    Mode::Vgpu
}

/// The instances that a unit is or has.
fn instances(node: &NodeState, place: usize, gpu: &Gpu) -> Vec<InstanceTop> {
    match &gpu.mig {
        Some(Mig::Part(part)) => vec![InstanceTop {
            start: part.start,
            profile: part.profile.clone(),
            held: node.cards[place].sums.pods > 0,
            uuid: Some(gpu.uuid.clone()),
        }],
        Some(Mig::Dynamic(found)) => {
            let cut = node.cuts.iter().find(|cut| cut.card == place);
            let all = cut.map_or(&[][..], |cut| &cut.all).iter();
            let line = |one: &Instance| {
                let profile = &found.geometry.profiles()[one.profile].name;
                let made = found.instances.iter();
                let mut same = made.filter(|m| (&m.profile, m.start) == (profile, one.start));
                InstanceTop {
                    start: one.start,
                    profile: profile.clone(),
                    held: one.busy,
                    uuid: same.next().map(|made| made.uuid.clone()),
                }
            };
            let mut lines: Vec<InstanceTop> = all.map(line).collect();
            lines.sort();
            lines
        }
        Some(Mig::Unknown(_)) | None => Vec::new(),
    }
}

impl NodeTop {
    /// A node with an inventory; `cores` is what a pod gets that asks for none.
    pub fn of(name: &NodeName, node: &NodeState, cores: Percent) -> Option<Self> {
        let inventory = node.inventory.as_ref()?;
        let cards = inventory.gpus.iter().zip(&node.cards);
        let line = |(place, (gpu, card)): (usize, (&Gpu, &Card))| {
            let top = GpuTop::of(inventory, gpu, card, cores, node.closed);
            let cut = node.cuts.iter().find(|cut| cut.card == place);
            let found = gpu.mig.as_ref().and_then(Mig::dynamic);
            let largest = |(cut, found): (&Cut, &published::Cut)| {
                let open = top.closed.is_none();
                open.then(|| cut::largest(cut, &found.geometry)).flatten()
            };
            let largest = cut.zip(found).map(largest);
            GpuTop {
                instances: instances(node, place, gpu),
                largest: largest.unwrap_or(top.largest),
                largest_with_default_cores: largest.unwrap_or(top.largest_with_default_cores),
                ..top
            }
        };
        Some(Self {
            node: name.clone(),
            closed: node.closed.map(|reason| reason.name().to_owned()),
            gpus: cards.enumerate().map(line).collect(),
        })
    }
}

impl GpuTop {
    fn of(
        inventory: &Inventory,
        gpu: &Gpu,
        card: &Card,
        cores: Percent,
        whole: Option<Reason>,
    ) -> Self {
        let card = &Card {
            closed: whole.or(card.closed),
            ..*card
        };
        Self {
            gpu: gpu.uuid.clone(),
            index: gpu.index,
            model: gpu.model.clone(),
            mode: gpu.mode,
            resource: match gpu.mode {
                Mode::Mig => String::new(),
                _ => gpu.resource.clone(),
            },
            instances: Vec::new(),
            closed: card.closed.map(|reason| reason.name().to_owned()),
            pods: card.sums.pods,
            total: Amount::total(card),
            used: card.sums.used.into(),
            left: Amount::left(card),
            lingering: lingering(inventory, &gpu.uuid),
            largest: largest(card, Percent(0)),
            largest_with_default_cores: largest(card, cores),
        }
    }
}
