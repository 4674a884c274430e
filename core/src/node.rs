//! A node as the books see it: its cards in a compact form, the seats that its
//! kubelet counts, and the CPU and memory that Kubernetes' own scheduler counts.
//!
//! Fed by: [`crate::ledger`], which makes a new state whenever something of a
//! node changes; a state that somebody holds never changes.
//! Must not: choose; that is [`crate::fit`].

use std::sync::Arc;

use crate::cut::Cut;
use crate::id::{GpuUuid, Namespace, PodUid};
use crate::inventory::{Inventory, Mode, Scope};
use crate::ledger::Held;
use crate::mig::Instance;
use crate::mig::published::Mig;
use crate::reason::Reason;
use crate::seats::{Counted, Seats};
use crate::seen::Units;
use crate::units::{Mib, MilliCpu, Percent};
use crate::usage::Use;

/// The kubelet's Topology Manager policies under which a container's cards must
/// be on one NUMA node (design 4.4).
const ONE_NUMA: [&str; 2] = ["restricted", "single-numa-node"];

/// What must be on one NUMA node together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Align {
    /// Nothing.
    #[default]
    Nothing,
    /// All cards of a container, whatever resources it has them under.
    Container,
    /// All cards of the pod.
    Pod,
}

/// CPU and memory of a node or of a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Compute {
    /// Thousandths of a CPU.
    pub cpu: MilliCpu,
    /// Host memory.
    pub memory: Mib,
}

impl Compute {
    /// Both together.
    pub fn plus(self, other: Self) -> Self {
        Self {
            cpu: self.cpu + other.cpu,
            memory: self.memory + other.memory,
        }
    }

    /// What is left of `self` without `other`; nothing where that is more.
    pub fn less(self, other: Self) -> Self {
        Self {
            cpu: MilliCpu(self.cpu.0.saturating_sub(other.cpu.0)),
            memory: Mib(self.memory.0.saturating_sub(other.memory.0)),
        }
    }

    /// `other` fits into this.
    pub fn covers(self, other: Self) -> bool {
        self.cpu >= other.cpu && self.memory >= other.memory
    }
}

/// What pods request of a node besides shares of its cards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// CPU and memory.
    pub host: Compute,
    /// Seats at the kubelet.
    pub seats: Seats,
}

impl Requests {
    /// All of these, too.
    pub fn plus(&mut self, others: &Self) {
        self.host = self.host.plus(others.host);
        self.seats.plus(&others.seats);
    }
}

impl From<Compute> for Requests {
    /// No seat.
    fn from(host: Compute) -> Self {
        Self {
            host,
            seats: Seats::default(),
        }
    }
}

/// What a node can carry besides GPUs, and what its pods request of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// `status.allocatable`.
    pub allocatable: Compute,
    /// The effective requests of all pods bound to it, ours or not.
    pub requested: Compute,
}

impl Host {
    /// What is left; nothing where more is requested than there is.
    pub fn free(self) -> Compute {
        self.allocatable.less(self.requested)
    }
}

/// What a node's owner and agent say of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// The agent's inventory; `None` while there is none that can be read.
    pub inventory: Option<Arc<Inventory>>,
    /// `status.allocatable`.
    pub allocatable: Compute,
    /// The seats in it; `None` where it says nothing at all.
    pub seats: Option<Seats>,
    /// Cards that an administrator took out (`hami.io/device-cordon`).
    pub cordoned: Vec<GpuUuid>,
    /// The inventory is the one that HAMi's plugin registered: its pods are
    /// counted and shown, none of ours is placed.
    pub of_hami: bool,
}

/// All pods' uses of one card, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// The sum of the pods' effective uses.
    pub used: Use,
    /// How many pods.
    pub pods: u32,
}

impl Sums {
    /// With one more pod.
    pub fn add(&mut self, used: Use) {
        self.used = self.used.with(used);
        self.pods += 1;
    }
}

/// One card: what may be promised of it and what is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Card {
    /// Memory that may be promised.
    pub scaled: Mib,
    /// Compute that may be promised.
    pub cores: Percent,
    /// Shares that it can carry at once.
    pub seats: u32,
    /// NUMA node, where the driver knows one.
    pub numa: Option<u32>,
    /// How it is shared.
    pub mode: Mode,
    /// Each container may have one seat only.
    pub strict: bool,
    /// Which of [`NodeState::resources`] it is advertised under.
    pub resource: u8,
    /// Why it takes no new share from anybody.
    pub closed: Option<Reason>,
    /// What pods hold.
    pub sums: Sums,
}

impl Card {
    /// Why this card cannot take this use beside what it carries; `None` if it
    /// can. One reason, the first in the order of HAMi's `Fit` (4.6, rules 6 and
    /// 11 to 14).
    pub fn refuse(&self, used: &Use) -> Option<Reason> {
        let others = &self.sums.used;
        if self.closed.is_some() {
            self.closed
        } else if others.seats.saturating_add(used.seats) > self.seats {
            Some(match self.mode {
                Mode::Exclusive => Reason::ExclusiveDeviceAllocateConflict,
                _ => Reason::CardTimeSlicingExhausted,
            })
        } else if others.memory + used.memory > self.scaled {
            Some(Reason::CardInsufficientMemory)
        } else if others.cores + used.cores > self.cores {
            Some(Reason::CardInsufficientCore)
        } else if used.alone && self.sums.pods > 0 {
            Some(Reason::ExclusiveDeviceAllocateConflict)
        } else if used.leftover && others.cores >= self.cores {
            Some(Reason::CardComputeUnitsExhausted)
        } else if others.alone {
            // A card that may promise more compute than it has.
            Some(Reason::ExclusiveDeviceAllocateConflict)
        } else {
            None
        }
    }

    /// What can still be promised, in thousandths of a card: the mean of memory
    /// and compute, 0 for a card that takes nothing.
    pub fn free(&self) -> u64 {
        let used = &self.sums.used;
        if self.closed.is_some() || used.alone || used.seats >= self.seats {
            return 0;
        }
        let part = |used: u64, total: u64| {
            let free = total.saturating_sub(used).saturating_mul(500);
            free.checked_div(total).unwrap_or(0)
        };
        part(used.memory.0, self.scaled.0) + part(used.cores.0.into(), self.cores.0.into())
    }
}

/// A node as the books see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeState {
    /// What its agent published.
    pub inventory: Option<Arc<Inventory>>,
    /// The cards of the inventory, in its order.
    pub cards: Vec<Card>,
    /// The resources that its cards are advertised under, without repetition.
    pub resources: Vec<Arc<str>>,
    /// Those of the cards that are cut as pods come.
    pub cuts: Vec<Cut>,
    /// CPU and memory.
    pub host: Host,
    /// Seats, as its kubelet counts them.
    pub seats: Counted,
    /// The namespaces that something of it is kept for, each once, in order.
    pub kept_for: Vec<Namespace>,
    /// Its kubelet admits only pods that are aligned so.
    pub align: Align,
    /// Why it takes no pod of ours at all.
    pub closed: Option<Reason>,
}

impl NodeState {
    /// The state of a node that published this and on which these pods hold
    /// shares and request `requested` in all.
    pub fn of(
        published: &Published,
        pods: &[(&PodUid, &Held)],
        requested: impl Into<Requests>,
    ) -> Self {
        let requested = requested.into();
        let host = Host {
            allocatable: published.allocatable,
            requested: requested.host,
        };
        let seats = Counted {
            offered: published.seats.clone(),
            requested: requested.seats,
        };
        let mut state = Self {
            inventory: published.inventory.clone(),
            cards: Vec::new(),
            resources: Vec::new(),
            cuts: Vec::new(),
            host,
            seats,
            kept_for: Vec::new(),
            align: Align::Nothing,
            closed: None,
        };
        if published.of_hami {
            state.closed = Some(Reason::NodeServedByHami);
        } else if pods.iter().any(|(_, held)| **held == Held::Unreadable) {
            state.closed = Some(Reason::NodeAllocationUnreadable);
        }
        match &published.inventory {
            None => state.closed = Some(Reason::NodeNotRegistered),
            Some(inventory) => {
                if ONE_NUMA.contains(&inventory.topology_policy.as_str()) {
                    state.align = match inventory.topology_scope {
                        Scope::Container => Align::Container,
                        Scope::Pod => Align::Pod,
                    };
                }
                state.kept_for = kept_for(inventory);
                let units = Units::of(inventory, &published.cordoned, pods);
                (state.cards, state.resources) = (units.cards, units.resources);
                state.cuts = units.cuts;
            }
        }
        state
    }

    /// The same node with these uses of its cards and these seats added, as one more
    /// pod; the uses that are instances are named by their place among them. Uses of
    /// cards that it no longer has count nowhere.
    pub fn with(
        &self,
        uses: &[(usize, Use)],
        instances: &[(usize, Instance)],
        seats: &Seats,
    ) -> Self {
        let mut more = self.clone();
        more.seats.requested.plus(seats);
        for &(card, used) in uses {
            if let Some(card) = more.cards.get_mut(card) {
                card.sums.add(used);
            }
        }
        for &(place, instance) in instances {
            let card = uses.get(place).map(|(card, _)| *card);
            let Some(cut) = more.cuts.iter_mut().find(|cut| Some(cut.card) == card) else {
                continue;
            };
            // What was noted before the card changed may be none of its instances now.
            let gpus = more.inventory.iter().flat_map(|inventory| &inventory.gpus);
            let gpu = gpus.clone().nth(cut.card);
            let found = gpu.and_then(|gpu| gpu.mig.as_ref().and_then(Mig::dynamic));
            if found.is_some_and(|found| found.geometry.has(instance)) {
                cut.put(instance);
            }
        }
        more
    }
}

fn kept_for(inventory: &Inventory) -> Vec<Namespace> {
    let gpus = &inventory.gpus;
    let cuts = gpus
        .iter()
        .filter_map(|gpu| gpu.mig.as_ref().and_then(Mig::dynamic));
    let places = cuts.flat_map(|cut| cut.reserved.iter().flat_map(|kept| &kept.namespaces));
    let units = gpus.iter().flat_map(|gpu| &gpu.reserved);
    let mut all: Vec<Namespace> = units.chain(places).cloned().collect();
    all.sort_unstable();
    all.dedup();
    all
}
