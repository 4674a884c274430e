//! What goes into a judgement and what comes out.
//!
//! Fed by: [`crate::look`], the judge. Must not: decide.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aliquot_core::PodUid;
use aliquot_region::host::{Report, Unreadable};

use crate::attribute::{Beside, OnCard, Reason};
use crate::cgroup::Place;
use crate::containers::Cgroups;
use crate::processes::Life;
use crate::seats::Seats;
use crate::settings::OnUnmanaged;

/// What was read of a counters file before and after the driver was asked.
pub type Counters = Result<(Report, Report), Unreadable>;

/// All that was read at one time.
#[derive(Debug, Default)]
pub struct Look {
    /// The seats.
    pub seats: Arc<Seats>,
    /// Memory limit in bytes of each device of each seat, by their limits pages; 0: unknown.
    pub limits: Vec<Vec<u64>>,
    /// Bytes that each limits page has as charged beside.
    pub charged: Vec<Vec<u64>>,
    /// The counters file of each seat; `None` of one that no library holds.
    pub counters: Vec<Option<Counters>>,
    /// Processes on cards.
    pub on_cards: Vec<OnCard>,
    /// Cards whose processes could not be read, also one that is not in the list of cards.
    pub blind: BTreeSet<String>,
    /// The card of each instance, by the instance's uuid.
    pub cards: BTreeMap<String, String>,
    /// Percent of its card that each process took by the newest sample, where the driver says so.
    pub busy: BTreeMap<(String, u32), u32>,
    /// Cards with a sample that is new.
    pub told: BTreeSet<String>,
    /// Cgroups of the containers with a seat.
    pub cgroups: Cgroups,
    /// Cgroups of which one is such a container's, whose id the API server has not told yet.
    pub early: Cgroups,
    /// What else is known.
    pub beside: Beside,
}

impl Look {
    /// What the driver calls a device of a seat now.
    pub fn called(&self, at: usize, device: usize) -> &str {
        let called = self.beside.called.get(at).and_then(|all| all.get(device));
        let booked = || self.seats.all[at].devices[device].uuid.as_str();
        called.map_or_else(booked, String::as_str)
    }

    /// The card of a device of a seat.
    pub fn card(&self, at: usize, device: usize) -> &str {
        let uuid = self.called(at, device);
        self.cards.get(uuid).map_or(uuid, String::as_str)
    }
}

/// The administrator's rules.
#[derive(Clone, Debug)]
pub struct Rules {
    /// What becomes of processes that nobody accounts for.
    pub unmanaged: OnUnmanaged,
    /// Pods whose are only reported.
    pub spared: BTreeSet<PodUid>,
    /// Bytes for each process that a container may pass its limit by.
    pub tolerance: u64,
    /// The API server tells of this node's pods now.
    pub fresh: bool,
}

/// What one device of one container uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Use {
    /// Bytes that it may use; 0: no limit is known.
    pub limit: u64,
    /// Bytes that the driver says its processes hold.
    pub measured: u64,
    /// Bytes that the library counts.
    pub tracked: u64,
    /// Of these, contexts.
    pub contexts: u64,
    /// The most that was measured, or counted within the limit.
    pub peak: u64,
    /// Bytes that the host charges beside.
    pub overhead: u64,
    /// Bytes that are still counted for processes that ended.
    pub stale: u64,
    /// Its processes on the device.
    pub processes: u64,
    /// Percent of the card that they took.
    pub busy: u32,
    /// What the library counts of compute.
    pub work: aliquot_region::host::Work,
    /// Requests that the library refused.
    pub refused: u64,
    /// Not all of its processes are known now: what was measured says too little.
    pub blind: bool,
}

/// A process that nobody accounts for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unmanaged {
    /// Its card.
    pub card: String,
    /// Its pod.
    pub pod: Option<PodUid>,
    /// Why.
    pub reason: Reason,
    /// Bytes that it holds.
    pub bytes: u64,
}

/// Something to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deed {
    /// Tell of a process that nobody accounts for.
    TellStray(Unmanaged, u32),
    /// Tell that a container holds more than its limit: its seat, device, bytes held.
    TellAbove(usize, usize, u64),
    /// End a process that nobody accounts for.
    EndStray(Life, Place, Unmanaged),
    /// End the newest grower of a container: its seat, device, bytes held together.
    EndGrower(Life, Place, usize, usize, u64),
    /// Evict a pod.
    Evict(PodUid, Unmanaged),
}

/// What follows from a look.
#[derive(Debug, Default)]
pub struct Outcome {
    /// What each device of each seat uses.
    pub uses: Vec<Vec<Use>>,
    /// Bytes to charge on each limits page; `None`: as it is.
    pub charges: Vec<Vec<Option<u64>>>,
    /// The processes of each seat: id in the container, device, bytes; `None`: not all are known.
    pub lists: Vec<Option<Vec<(u32, usize, u64)>>>,
    /// Processes that nobody accounts for, those that are believed.
    pub strays: Vec<Unmanaged>,
    /// Processes of which it is not known whose they are.
    pub unknown: u64,
    /// Counters files that their tenants made say nothing, by the place of their seat.
    pub spoiled: Vec<(usize, String)>,
    /// What to do.
    pub deeds: Vec<Deed>,
}
