//! Memory pools: the memory that they reserve on a GPU grows in chunks, and shrinks to the release
//! threshold at a synchronization. Gaps inside a pool are not simulated.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::codes::{ERROR_INVALID_VALUE, ERROR_OUT_OF_MEMORY};
use crate::context::ContextRef;
use crate::driver::Driver;
use crate::ffi::Answer;
use crate::heap::{BLOCK, Kind};
use crate::objects::new_handle;
use crate::types::{Device, Handle};

/// A pool grows in these steps while memory is free.
const CHUNK: u64 = 32 << 20;
/// Allocations are multiples of this.
const PART: u64 = 512;

pub(crate) struct Pools(Mutex<State>);

struct State {
    pools: HashMap<Handle, Pool>,
    /// By device: its default pool, which is the current one too.
    own: Vec<Handle>,
    /// The pools of the host and of managed memory, once requested.
    of_host: Option<Handle>,
    of_managed: Option<Handle>,
    /// Of each managed allocation of a pool, by its address, the pool.
    movable: HashMap<u64, Handle>,
}

pub(crate) struct Pool {
    pub(crate) gpu_index: usize,
    /// Its memory is on the host, and not charged to the GPU.
    on_host: bool,
    /// Its memory moves between host and GPUs, and is charged to a GPU while it is there.
    managed: bool,
    /// Most bytes; 0: no limit.
    most: u64,
    destroyed: bool,
    pub(crate) release_threshold: u64,
    pub(crate) reserved: u64,
    pub(crate) reserved_high: u64,
    pub(crate) used: u64,
    pub(crate) used_high: u64,
    /// The three reuse attributes, 1 to 3.
    pub(crate) reuse: [u32; 3],
}

impl Pool {
    fn new(gpu_index: usize, most: u64) -> Self {
        Self {
            gpu_index,
            on_host: false,
            managed: false,
            most,
            destroyed: false,
            release_threshold: 0,
            reserved: 0,
            reserved_high: 0,
            used: 0,
            used_high: 0,
            reuse: [1; 3],
        }
    }

    fn grow(&mut self, driver: &Driver, bytes: u64) -> Answer {
        let wanted = (self.used.checked_add(bytes)).ok_or(ERROR_OUT_OF_MEMORY)?;
        if self.most > 0 && wanted > self.most {
            return Err(ERROR_OUT_OF_MEMORY);
        }
        let lacking = wanted.saturating_sub(self.reserved);
        if lacking > 0 {
            let whole = lacking.checked_next_multiple_of(CHUNK);
            let tight = lacking.checked_next_multiple_of(BLOCK);
            let (whole, tight) = whole.zip(tight).ok_or(ERROR_OUT_OF_MEMORY)?;
            let taken = match self.charge(driver, whole) {
                Ok(()) => whole,
                Err(_) => self.charge(driver, tight).map(|()| tight)?,
            };
            self.reserved += taken;
            self.reserved_high = self.reserved_high.max(self.reserved);
        }
        self.used = wanted;
        self.used_high = self.used_high.max(wanted);
        Ok(())
    }

    fn charge(&self, driver: &Driver, bytes: u64) -> Answer {
        if self.on_host || self.managed {
            return Ok(());
        }
        driver.charge(self.gpu_index, bytes)
    }

    /// Releases what is neither used nor within `keep`.
    fn trim(&mut self, driver: &Driver, keep: u64) {
        let used = self.used.next_multiple_of(BLOCK).min(self.reserved);
        let left = keep.min(self.reserved).max(used);
        if !self.on_host && !self.managed {
            driver.release(self.gpu_index, self.reserved - left);
        }
        self.reserved = left;
    }
}

impl Pools {
    pub(crate) fn new(devices: usize) -> Self {
        let own: Vec<Handle> = (0..devices).map(|_| new_handle()).collect();
        Self(Mutex::new(State {
            pools: HashMap::new(),
            own,
            of_host: None,
            of_managed: None,
            movable: HashMap::new(),
        }))
    }

    /// A device's default pool.
    pub(crate) fn of_device(&self, driver: &Driver, device: Device) -> Answer<Handle> {
        let gpu_index = driver.gpu_index(device)?;
        let mut state = self.0.lock();
        let index = usize::try_from(device).map_err(|_| ERROR_INVALID_VALUE)?;
        let default = state.own[index];
        let pool = Pool::new(gpu_index, 0);
        state.pools.entry(default).or_insert(pool);
        Ok(default)
    }

    pub(crate) fn of_host(&self, driver: &Driver) -> Answer<Handle> {
        if let Some(known) = self.0.lock().of_host {
            return Ok(known);
        }
        let made = self.create(driver, None, 0, false)?;
        Ok(*self.0.lock().of_host.get_or_insert(made))
    }

    /// The pool of managed memory without a location.
    pub(crate) fn of_managed(&self, driver: &Driver) -> Answer<Handle> {
        if let Some(known) = self.0.lock().of_managed {
            return Ok(known);
        }
        let made = self.create(driver, None, 0, true)?;
        Ok(*self.0.lock().of_managed.get_or_insert(made))
    }

    /// A pool on a device, or on the host, or of memory that moves.
    pub(crate) fn create(
        &self,
        driver: &Driver,
        device: Option<Device>,
        most: u64,
        managed: bool,
    ) -> Answer<Handle> {
        let (on_host, device) = (device.is_none() && !managed, device.unwrap_or(0));
        let pool = Pool {
            on_host,
            managed,
            ..Pool::new(driver.gpu_index(device)?, most)
        };
        let handle = new_handle();
        self.0.lock().pools.insert(handle, pool);
        Ok(handle)
    }

    /// Marks it destroyed: no new allocations, and it is freed with its last one.
    pub(crate) fn destroy(&self, driver: &Driver, handle: Handle) -> Answer {
        let mut state = self.0.lock();
        if state.own.contains(&handle) {
            return Err(ERROR_INVALID_VALUE);
        }
        let pool = state.pools.get_mut(&handle).ok_or(ERROR_INVALID_VALUE)?;
        if std::mem::replace(&mut pool.destroyed, true) {
            return Err(ERROR_INVALID_VALUE);
        }
        pool.trim(driver, 0);
        if pool.used == 0 {
            state.pools.remove(&handle);
        }
        Ok(())
    }

    pub(crate) fn with<T>(
        &self,
        handle: Handle,
        body: impl FnOnce(&mut Pool) -> Answer<T>,
    ) -> Answer<T> {
        let mut state = self.0.lock();
        let pool = state.pools.get_mut(&handle).filter(|pool| !pool.destroyed);
        body(pool.ok_or(ERROR_INVALID_VALUE)?)
    }

    /// An allocation of a pool.
    pub(crate) fn take(
        &self,
        driver: &Driver,
        context: ContextRef,
        handle: Handle,
        size: u64,
    ) -> Answer<u64> {
        if size == 0 {
            return Err(ERROR_INVALID_VALUE);
        }
        let bytes = size
            .checked_next_multiple_of(PART)
            .ok_or(ERROR_OUT_OF_MEMORY)?;
        let managed = self.with(handle, |pool| {
            pool.grow(driver, bytes)?;
            Ok(pool.managed)
        })?;
        let base = driver
            .arena
            .take(size.max(4096))
            .ok_or(ERROR_OUT_OF_MEMORY)?;
        let kind = if managed {
            self.0.lock().movable.insert(base, handle);
            Kind::Managed
        } else {
            Kind::Pool { pool: handle }
        };
        driver.heap.add(base, size, kind, Some(context.owner()));
        Ok(base)
    }

    /// Records freed managed memory, of a pool or not.
    pub(crate) fn record_freed_managed(&self, driver: &Driver, base: u64, size: u64) {
        let pool = self.0.lock().movable.remove(&base);
        if let Some(pool) = pool {
            self.record_freed(driver, pool, size);
        }
    }

    /// Records a freed allocation of `size` bytes.
    pub(crate) fn record_freed(&self, driver: &Driver, handle: Handle, size: u64) {
        let mut state = self.0.lock();
        if let Some(pool) = state.pools.get_mut(&handle) {
            pool.used = pool.used.saturating_sub(size.next_multiple_of(PART));
            if pool.destroyed && pool.used == 0 {
                pool.trim(driver, 0);
                state.pools.remove(&handle);
            }
        }
    }

    /// After a synchronization: a GPU's pools shrink to their release threshold.
    pub(crate) fn settle(&self, driver: &Driver, gpu_index: usize) {
        let mut state = self.0.lock();
        for pool in state
            .pools
            .values_mut()
            .filter(|pool| pool.gpu_index == gpu_index)
        {
            if pool.reserved > 0 {
                pool.trim(driver, pool.release_threshold);
            }
        }
    }

    pub(crate) fn trim(&self, driver: &Driver, handle: Handle, keep: u64) -> Answer {
        self.with(handle, |pool| {
            pool.trim(driver, keep);
            Ok(())
        })
    }
}
