//! What `cuInit` opens: the machine of `GPUSIM_STATE`, this process's slot in it, and the GPUs that
//! the process may see by its device nodes (or its environment in their place) and
//! `CUDA_VISIBLE_DEVICES`.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use aliquot_gpusim_model::Member;
use aliquot_gpusim_model::device_nodes;
use aliquot_gpusim_model::mig::MigDevice;
use aliquot_gpusim_model::model::{Gpu, Machine};
use aliquot_gpusim_model::state::State;
use parking_lot::{Mutex, RwLock};

use crate::arena::Arena;
use crate::attributes;
use crate::codes::{
    ERROR_INVALID_DEVICE, ERROR_INVALID_VALUE, ERROR_NO_DEVICE, ERROR_NOT_INITIALIZED,
    ERROR_OPERATING_SYSTEM, ERROR_OUT_OF_MEMORY, ERROR_SYSTEM_NOT_READY, ERROR_UNKNOWN,
};
use crate::context::Contexts;
use crate::ffi::Answer;
use crate::forked;
use crate::graph::GraphMemoryByGpu;
use crate::heap::Heap;
use crate::mps;
use crate::objects::Objects;
use crate::pools::Pools;
use crate::residency::Residency;
use crate::timeline::Timeline;
use crate::types::Device;
use crate::vmm::Vmm;
use crate::wait;

pub(crate) struct Driver {
    state: State,
    member: Member,
    mps: Option<mps::Client>,
    /// GPU index of each device ordinal.
    gpu_indexes: Vec<usize>,
    /// The UUID of the MIG instance that the process uses.
    instance: Option<String>,
    /// Its multiprocessors.
    instance_multiprocessors: Option<u32>,
    /// The machine as of a generation.
    seen: RwLock<(u32, Box<Machine>)>,
    pub(crate) arena: Arena,
    pub(crate) heap: Heap,
    pub(crate) contexts: Contexts,
    pub(crate) objects: Objects,
    pub(crate) pools: Pools,
    pub(crate) residency: Residency,
    pub(crate) timeline: Timeline,
    pub(crate) graph_memory: GraphMemoryByGpu,
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
    if !machine.is_loaded() || !device_nodes::opens_control(&machine) {
        return Err(ERROR_NO_DEVICE);
    }
    if !device_nodes::opens_uvm(&machine) {
        return Err(ERROR_UNKNOWN);
    }
    let variable = |name| std::env::var(name).ok();
    let given = aliquot_gpusim_model::visible_devices(&machine);
    let chosen = variable("CUDA_VISIBLE_DEVICES");
    let gpu_indexes = machine.visible_gpus(given.as_deref(), chosen.as_deref());
    if gpu_indexes.is_empty() {
        return Err(ERROR_NO_DEVICE);
    }
    if gpu_indexes
        .iter()
        .any(|index| machine.gpus[*index].awaits_fabric())
    {
        return Err(ERROR_SYSTEM_NOT_READY);
    }
    let mut member = Member::join(&path).map_err(|_| ERROR_OPERATING_SYSTEM)?;
    let named = chosen.as_deref().or(given.as_deref());
    let instance = named.and_then(|named| machine.instance(named.trim()));
    if let Some(instance) = &instance {
        // An instance is its GPU with less memory.
        member.cap(instance.gpu_index, instance.gpu.memory);
        member.join_instance((instance.gpu.id, instance.compute.id));
    }
    let mps = mps::connect(&mut member, &gpu_indexes)?;
    let count = gpu_indexes.len();
    let driver = Driver {
        contexts: Contexts::new(gpu_indexes.len()),
        state,
        member,
        mps,
        gpu_indexes,
        instance_multiprocessors: instance.as_ref().map(MigDevice::multiprocessors),
        instance: instance.map(|instance| instance.uuid(&machine)),
        seen: RwLock::new((generation, machine)),
        arena: Arena::new().ok_or(ERROR_OUT_OF_MEMORY)?,
        heap: Heap::default(),
        objects: Objects::default(),
        pools: Pools::new(count),
        residency: Residency::default(),
        timeline: Timeline::default(),
        graph_memory: GraphMemoryByGpu::default(),
        vmm: Vmm::default(),
    };
    forked::mark();
    let _ = DRIVER.set(driver);
    Ok(())
}

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

/// Waits while this process is suspended: only a call that suspends or restores processes goes on.
#[inline]
pub(crate) fn wait_while_suspended(symbol: &str) {
    let is_suspended = || {
        let driver = DRIVER.get().filter(|_| !forked::since_mark());
        driver.is_some_and(|driver| driver.member.is_suspended())
    };
    while is_suspended() && !symbol.starts_with("cuCheckpointProcess") {
        wait::pause(1_000_000);
    }
}

impl Driver {
    pub(crate) fn count(&self) -> i32 {
        i32::try_from(self.gpu_indexes.len()).expect("at most MAX_GPUS")
    }

    pub(crate) fn gpu_index(&self, device: Device) -> Answer<usize> {
        let ordinal = usize::try_from(device).map_err(|_| ERROR_INVALID_DEVICE)?;
        self.gpu_indexes
            .get(ordinal)
            .copied()
            .ok_or(ERROR_INVALID_DEVICE)
    }

    pub(crate) fn device_of(&self, gpu_index: usize) -> Option<Device> {
        let ordinal = self.gpu_indexes.iter().position(|own| *own == gpu_index)?;
        i32::try_from(ordinal).ok()
    }

    /// The UUID of the MIG instance that the process uses.
    pub(crate) fn instance(&self) -> Option<&str> {
        self.instance.as_deref()
    }

    /// Reads the machine as it is now.
    pub(crate) fn with_machine<T>(&self, see: impl FnOnce(&Machine) -> T) -> T {
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

    /// Reads a GPU as it is now.
    pub(crate) fn on_gpu<T>(&self, gpu_index: usize, see: impl FnOnce(&Gpu) -> T) -> T {
        self.with_machine(|machine| see(&machine.gpus[gpu_index]))
    }

    pub(crate) fn gpu<T>(&self, device: Device, see: impl FnOnce(&Gpu) -> T) -> Answer<T> {
        Ok(self.on_gpu(self.gpu_index(device)?, see))
    }

    /// Bytes of a GPU that CUDA processes may use together.
    pub(crate) fn capacity(&self, gpu_index: usize) -> u64 {
        self.on_gpu(gpu_index, |gpu| {
            let others = gpu.used() + gpu.memory_reserved;
            gpu.memory_total.saturating_sub(others)
        })
    }

    /// By how much less a context takes of a GPU where a server of MPS has the rest.
    pub(crate) fn context_part(&self) -> u64 {
        self.mps.as_ref().map_or(1, |_| mps::CONTEXT_PART)
    }

    /// Nanoseconds in which so many bytes move within a GPU.
    pub(crate) fn move_time(&self, gpu_index: usize, bytes: u64) -> u64 {
        let rate = self.on_gpu(gpu_index, |gpu| gpu.copy_gib_per_second << 30);
        let time = u128::from(bytes) * 1_000_000_000;
        let time = time.checked_div(u128::from(rate)).unwrap_or(0);
        u64::try_from(time).unwrap_or(u64::MAX)
    }

    /// The multiprocessors that this process sees on a GPU.
    pub(crate) fn multiprocessors(&self, gpu_index: usize) -> u32 {
        let whole = || self.on_gpu(gpu_index, attributes::multiprocessors);
        self.instance_multiprocessors.unwrap_or_else(whole)
    }

    /// The threads of this process that can run at once on a GPU.
    pub(crate) fn resident_threads(&self, gpu_index: usize) -> u64 {
        let each = self.on_gpu(gpu_index, attributes::resident_threads);
        u64::from(self.multiprocessors(gpu_index)) * u64::from(each)
    }

    /// After a synchronization: releases what waited for it.
    pub(crate) fn settle(&self, gpu_index: usize) {
        self.heap.settle(self);
        self.pools.settle(self, gpu_index);
    }

    /// The MPS server that this process uses the GPUs through.
    pub(crate) fn mps(&self) -> Option<&mps::Client> {
        self.mps.as_ref()
    }

    pub(crate) fn member(&self) -> &Member {
        &self.member
    }

    pub(crate) fn charge(&self, gpu_index: usize, bytes: u64) -> Answer {
        let capacity = self.capacity(gpu_index);
        let taken = self.member.charge(gpu_index, bytes, capacity);
        taken.map_err(|_| ERROR_OUT_OF_MEMORY)
    }

    /// Charges bytes that may be moved to the host later.
    pub(crate) fn charge_managed(&self, gpu_index: usize, bytes: u64) -> Answer {
        let capacity = self.capacity(gpu_index);
        let taken = self.member.charge_managed(gpu_index, bytes, capacity);
        taken.map_err(|_| ERROR_OUT_OF_MEMORY)
    }

    pub(crate) fn release(&self, gpu_index: usize, bytes: u64) {
        self.member.release(gpu_index, bytes);
    }

    /// Free and total bytes, as a program sees them.
    pub(crate) fn memory(&self, gpu_index: usize) -> (u64, u64) {
        let capacity = self.capacity(gpu_index);
        let total = self.on_gpu(gpu_index, total_memory);
        let free = capacity.saturating_sub(self.member.used(gpu_index));
        // A client of MPS, or a process in a cgroup with a limit, sees its limit as the GPU's
        // memory.
        let capped = self.member.capped(gpu_index).map(|cap| {
            let own = self.member.counters(gpu_index).used.load(Relaxed);
            (cap.saturating_sub(own), cap)
        });
        let cgroup_limit = self.member.own_memory_limit(gpu_index);
        let cgroup_limit =
            cgroup_limit.map(|limit| (limit.hard.saturating_sub(limit.used), limit.hard));
        let limits = [capped, cgroup_limit].into_iter().flatten();
        limits.fold((free, total), |(free, total), (left, all)| {
            (free.min(left), total.min(all))
        })
    }

    /// Counts bytes that were imported from another process, which is charged for them.
    pub(crate) fn count_import(&self, gpu_index: usize, bytes: u64) {
        self.member
            .counters(gpu_index)
            .imported
            .fetch_add(bytes, Relaxed);
    }

    /// Undoes `count_import`.
    pub(crate) fn uncount_import(&self, gpu_index: usize, bytes: u64) {
        self.member
            .counters(gpu_index)
            .imported
            .fetch_sub(bytes, Relaxed);
    }

    /// The process's number of contexts on a GPU.
    pub(crate) fn contexts_on(&self, gpu_index: usize) -> &AtomicU64 {
        &self.member.counters(gpu_index).contexts
    }
}

/// A GPU's memory as CUDA reports it: without the driver's own part.
pub(crate) fn total_memory(gpu: &Gpu) -> u64 {
    gpu.memory_total.saturating_sub(gpu.memory_reserved)
}
