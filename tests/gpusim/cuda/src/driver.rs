//! What `cuInit` opens: the machine, this process's slot on it, the cards it may see and what it
//! has there. Fed by `GPUSIM_STATE`, `NVIDIA_VISIBLE_DEVICES` (standing in for the device nodes
//! that a container runtime gives) and `CUDA_VISIBLE_DEVICES`.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use aliquot_gpusim_model::Member;
use aliquot_gpusim_model::model::{Gpu, Machine, text};
use aliquot_gpusim_model::state::State;
use parking_lot::{Mutex, RwLock};

use crate::arena::Arena;
use crate::codes::{
    ERROR_INVALID_DEVICE, ERROR_INVALID_VALUE, ERROR_NO_DEVICE, ERROR_NOT_INITIALIZED,
    ERROR_OPERATING_SYSTEM, ERROR_OUT_OF_MEMORY,
};
use crate::context::Contexts;
use crate::ffi::Answer;
use crate::forked;
use crate::graph::Reserves;
use crate::heap::Heap;
use crate::mps;
use crate::objects::Objects;
use crate::pools::Pools;
use crate::residency::Residency;
use crate::timeline::Timeline;
use crate::types::Device;
use crate::vmm::Vmm;

/// This process's driver.
pub(crate) struct Driver {
    state: State,
    member: Member,
    mps: Option<mps::Client>,
    /// Card index of each device ordinal.
    cards: Vec<usize>,
    /// The machine as of a generation.
    seen: RwLock<(u32, Box<Machine>)>,
    pub(crate) arena: Arena,
    pub(crate) heap: Heap,
    pub(crate) contexts: Contexts,
    pub(crate) objects: Objects,
    pub(crate) pools: Pools,
    pub(crate) residency: Residency,
    pub(crate) timeline: Timeline,
    pub(crate) reserves: Reserves,
    pub(crate) vmm: Vmm,
}

static DRIVER: OnceLock<Driver> = OnceLock::new();
static STARTING: Mutex<()> = Mutex::new(());

/// `cuInit`.
pub(crate) fn init(flags: u32) -> Answer {
    if flags != 0 {
        return Err(ERROR_INVALID_VALUE);
    }
    if forked::since_mark() {
        return Err(ERROR_NOT_INITIALIZED);
    }
    let _starting = STARTING.lock();
    if DRIVER.get().is_some() {
        return Ok(());
    }
    let path = PathBuf::from(std::env::var_os("GPUSIM_STATE").ok_or(ERROR_NO_DEVICE)?);
    let state = State::open(&path).map_err(|_| ERROR_NO_DEVICE)?;
    let (generation, machine) = (state.generation(), state.machine());
    let variable = |name| std::env::var(name).ok();
    let given = variable("NVIDIA_VISIBLE_DEVICES");
    let chosen = variable("CUDA_VISIBLE_DEVICES");
    let cards = visible(&machine, given.as_deref(), chosen.as_deref());
    if cards.is_empty() {
        return Err(ERROR_NO_DEVICE);
    }
    let mut member = Member::join(&path).map_err(|_| ERROR_OPERATING_SYSTEM)?;
    let named = chosen.as_deref().or(given.as_deref());
    if let Some(instance) = named.and_then(|named| machine.instance(named.trim())) {
        // An instance is its card with less memory.
        member.cap(instance.card, instance.gpu.memory);
        member.join_instance((instance.gpu.id, instance.compute.id));
    }
    let mps = mps::connect(&mut member, &cards)?;
    let count = cards.len();
    let driver = Driver {
        contexts: Contexts::new(cards.len()),
        state,
        member,
        mps,
        cards,
        seen: RwLock::new((generation, machine)),
        arena: Arena::new().ok_or(ERROR_OUT_OF_MEMORY)?,
        heap: Heap::default(),
        objects: Objects::default(),
        pools: Pools::new(count),
        residency: Residency::default(),
        timeline: Timeline::default(),
        reserves: Reserves::default(),
        vmm: Vmm::default(),
    };
    forked::mark();
    let _ = DRIVER.set(driver);
    Ok(())
}

/// The initialised driver.
#[inline]
pub(crate) fn driver() -> Answer<&'static Driver> {
    match DRIVER.get() {
        Some(driver) if !forked::since_mark() => {
            driver.mps.as_ref().map_or(Ok(()), mps::Client::check)?;
            Ok(driver)
        }
        _ => Err(ERROR_NOT_INITIALIZED),
    }
}

/// Card indexes in the order of device ordinals. Each list ends at the first entry that names no
/// card, as CUDA has it.
fn visible(machine: &Machine, given: Option<&str>, chosen: Option<&str>) -> Vec<usize> {
    let all: Vec<usize> = (0..machine.cards().len()).collect();
    let pick = |from: &[usize], list: &str| -> Vec<usize> {
        let names = list.split(',').map(str::trim);
        let found = names.map_while(|name| match name.parse::<usize>() {
            Ok(index) => from.get(index).copied(),
            Err(_) if name.starts_with("GPU-") => from
                .iter()
                .copied()
                .find(|card| text(&machine.gpus[*card].uuid).starts_with(name)),
            Err(_) => {
                let card = machine.instance(name)?.card;
                from.contains(&card).then_some(card)
            }
        });
        found.collect()
    };
    let allowed = match given {
        None | Some("all" | "") => all,
        Some(list) => pick(&all, list),
    };
    match chosen {
        None => allowed,
        Some(list) => pick(&allowed, list),
    }
}

/// What a card's calls look at often.
#[derive(Clone, Copy)]
pub(crate) struct Facts {
    /// Bytes that CUDA processes may take together.
    pub(crate) capacity: u64,
    pub(crate) context_bytes: u64,
    pub(crate) block_bytes: u64,
    /// `CUcomputemode`.
    pub(crate) compute_mode: u32,
    pub(crate) lost: bool,
    /// Nanoseconds of a time slice.
    pub(crate) slice: u64,
    /// Percent by which kernel times swing.
    pub(crate) swing: u32,
}

impl Driver {
    /// How many devices the process sees.
    pub(crate) fn count(&self) -> i32 {
        i32::try_from(self.cards.len()).expect("at most MAX_GPUS")
    }

    /// The card behind a device ordinal.
    pub(crate) fn card(&self, device: Device) -> Answer<usize> {
        let ordinal = usize::try_from(device).map_err(|_| ERROR_INVALID_DEVICE)?;
        self.cards.get(ordinal).copied().ok_or(ERROR_INVALID_DEVICE)
    }

    /// The device ordinal of a card.
    pub(crate) fn device_of(&self, card: usize) -> Option<Device> {
        let ordinal = self.cards.iter().position(|own| *own == card)?;
        i32::try_from(ordinal).ok()
    }

    /// Looks at the machine as it is now.
    pub(crate) fn look<T>(&self, see: impl FnOnce(&Machine) -> T) -> T {
        let generation = self.state.generation();
        let seen = self.seen.read();
        if seen.0 == generation {
            return see(&seen.1);
        }
        drop(seen);
        let mut seen = self.seen.write();
        *seen = (generation, self.state.machine());
        see(&seen.1)
    }

    /// Looks at the card behind a device ordinal.
    pub(crate) fn gpu<T>(&self, device: Device, see: impl FnOnce(&Gpu) -> T) -> Answer<T> {
        let card = self.card(device)?;
        Ok(self.look(|machine| see(&machine.gpus[card])))
    }

    pub(crate) fn facts(&self, card: usize) -> Facts {
        self.look(|machine| {
            let gpu = &machine.gpus[card];
            let others = gpu.used() + gpu.memory_reserved;
            let part = self.mps.as_ref().map_or(1, |_| mps::CONTEXT_PART);
            Facts {
                capacity: gpu.memory_total.saturating_sub(others),
                context_bytes: gpu.context_bytes / part,
                block_bytes: gpu.block_bytes,
                compute_mode: gpu.compute_mode,
                lost: gpu.lost != 0,
                slice: u64::from(gpu.slice_us) * 1000,
                swing: gpu.clock_swing,
            }
        })
    }

    /// Somebody waited for a card: what waited for that is given back.
    pub(crate) fn settle(&self, card: usize) {
        self.heap.settle(self);
        self.pools.settle(self, card);
    }

    /// The MPS server that this process uses the cards through.
    pub(crate) fn mps(&self) -> Option<&mps::Client> {
        self.mps.as_ref()
    }

    pub(crate) fn member(&self) -> &Member {
        &self.member
    }

    /// Counts a launch.
    pub(crate) fn count_launch(&self, card: usize) {
        self.member.holding(card).launches.fetch_add(1, Relaxed);
    }

    /// Takes bytes of a card for this process.
    pub(crate) fn charge(&self, card: usize, bytes: u64) -> Answer {
        let capacity = self.facts(card).capacity;
        let taken = self.member.charge(card, bytes, capacity);
        taken.map_err(|_| ERROR_OUT_OF_MEMORY)
    }

    /// Takes bytes that may be moved to the host later.
    pub(crate) fn charge_managed(&self, card: usize, bytes: u64) -> Answer {
        let capacity = self.facts(card).capacity;
        let taken = self.member.charge_managed(card, bytes, capacity);
        taken.map_err(|_| ERROR_OUT_OF_MEMORY)
    }

    /// Gives managed bytes back, and tells how many others had moved to the host.
    pub(crate) fn release_managed(&self, card: usize, bytes: u64) -> u64 {
        self.member.release_managed(card, bytes)
    }

    /// Managed bytes that a card wanted to use lie on the host from now on.
    pub(crate) fn stay_on_host(&self, card: usize, bytes: u64) {
        self.member.stay_on_host(card, bytes);
    }

    /// Managed bytes are on the host no more.
    pub(crate) fn leave_host(&self, card: usize, bytes: u64) {
        self.member.leave_host(card, bytes);
    }

    /// This process as one that others may name: its slot and how often that was claimed.
    pub(crate) fn identity(&self) -> (u64, u64) {
        self.member.identity()
    }

    /// The process of an identity lives, and is not this one.
    pub(crate) fn is_other(&self, identity: (u64, u64)) -> bool {
        self.member.is_other(identity)
    }

    /// Gives bytes back.
    pub(crate) fn release(&self, card: usize, bytes: u64) {
        self.member.release(card, bytes);
    }

    /// Bytes that are free and in all, as a program is told.
    pub(crate) fn memory(&self, card: usize) -> (u64, u64) {
        let capacity = self.facts(card).capacity;
        let total = self.look(|machine| total_memory(&machine.gpus[card]));
        let free = capacity.saturating_sub(self.member.used(card));
        // A client of MPS sees its limit as the card, and so does who is in a cgroup with one.
        let capped = self.member.capped(card).map(|cap| {
            let own = self.member.holding(card).used.load(Relaxed);
            (cap.saturating_sub(own), cap)
        });
        let walled = self.member.own_wall(card);
        let walled = walled.map(|wall| (wall.hard.saturating_sub(wall.used), wall.hard));
        let limits = [capped, walled].into_iter().flatten();
        limits.fold((free, total), |(free, total), (left, all)| {
            (free.min(left), total.min(all))
        })
    }

    /// Counts what the process asked for, beside what that takes of the card.
    pub(crate) fn count_request(&self, card: usize, bytes: u64) {
        self.member
            .holding(card)
            .requested
            .fetch_add(bytes, Relaxed);
    }

    /// Ends `count_request`.
    pub(crate) fn uncount_request(&self, card: usize, bytes: u64) {
        self.member
            .holding(card)
            .requested
            .fetch_sub(bytes, Relaxed);
    }

    /// The process's number of contexts on a card.
    pub(crate) fn contexts_on(&self, card: usize) -> &AtomicU64 {
        &self.member.holding(card).contexts
    }

    /// Another living process has a context on the card.
    pub(crate) fn is_used_by_others(&self, card: usize) -> bool {
        self.member.others_have_contexts(card)
    }
}

/// What CUDA calls a card's memory: the driver's own part is left out.
pub(crate) fn total_memory(gpu: &Gpu) -> u64 {
    gpu.memory_total.saturating_sub(gpu.memory_reserved)
}
