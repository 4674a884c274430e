//! Virtual memory management: reserved addresses, physical memory by handle, and mappings. The
//! memory is the card's until the last handle and the last mapping are gone, those of arrays and of
//! other processes included, and every file that names it is closed (`lent`).

use std::collections::{BTreeMap, HashMap};

use parking_lot::Mutex;

use crate::arena;
use crate::codes::{ERROR_INVALID_VALUE, ERROR_OUT_OF_MEMORY};
use crate::driver::Driver;
use crate::ffi::Answer;
use crate::heap::Kind;
use crate::lent::Lent;
use crate::objects::new_handle;
use crate::types::{AllocationProperties, Handle, Place};

/// `CU_MEM_LOCATION_TYPE_DEVICE`.
pub(crate) const ON_DEVICE: u32 = 1;
/// What sizes and addresses are multiples of.
pub(crate) const GRANULARITY: u64 = 2 << 20;

/// Everything of one process.
#[derive(Default)]
pub(crate) struct Vmm(Mutex<State>);

#[derive(Default)]
struct State {
    /// Length by address, with the length of the range behind it.
    reserved: BTreeMap<u64, (u64, u64)>,
    physical: HashMap<Handle, Physical>,
    mapped: BTreeMap<u64, Mapping>,
    /// What lies behind parts of sparse arrays.
    in_arrays: HashMap<Handle, Vec<Handle>>,
}

struct Physical {
    /// The card that pays; `None`: the host, or another process.
    card: Option<usize>,
    size: u64,
    properties: AllocationProperties,
    handles: u64,
    mappings: u64,
    /// Files that name it; of an import, the file that it came from.
    lent: Vec<Lent>,
}

impl Physical {
    fn is_unused(&self) -> bool {
        self.handles == 0 && self.mappings == 0 && !self.lent.iter().any(Lent::is_held)
    }
}

struct Mapping {
    size: u64,
    handle: Handle,
    /// `CUmemAccess_flags`.
    access: u64,
}

/// Physical memory as another process may name it.
pub(crate) struct Exported {
    pub(crate) size: u64,
    pub(crate) properties: AllocationProperties,
}

impl Vmm {
    pub(crate) fn reserve(&self, driver: &Driver, size: u64, alignment: u64) -> Answer<u64> {
        let sound = size > 0 && size.is_multiple_of(GRANULARITY);
        if !sound || !(alignment == 0 || alignment.is_power_of_two()) {
            return Err(ERROR_INVALID_VALUE);
        }
        let range = size.max(alignment);
        let base = driver.arena.take(range).ok_or(ERROR_OUT_OF_MEMORY)?;
        self.0.lock().reserved.insert(base, (size, range));
        Ok(base)
    }

    pub(crate) fn free(&self, driver: &Driver, base: u64, size: u64) -> Answer {
        let mut state = self.0.lock();
        let range = match state.reserved.get(&base) {
            Some((length, range)) if *length == size => *range,
            _ => return Err(ERROR_INVALID_VALUE),
        };
        if state.mapped.range(base..base + size).next().is_some() {
            return Err(ERROR_INVALID_VALUE);
        }
        state.reserved.remove(&base);
        drop(state);
        driver.arena.give(base, range, true);
        Ok(())
    }

    /// Physical memory of the process's own.
    pub(crate) fn create(
        &self,
        driver: &Driver,
        size: u64,
        properties: AllocationProperties,
    ) -> Answer<Handle> {
        if size == 0 || !size.is_multiple_of(GRANULARITY) || properties.kind != 1 {
            return Err(ERROR_INVALID_VALUE);
        }
        let card = match properties.location.place() {
            Place::Card(device) => Some(driver.card(device)?),
            Place::Host => None,
            Place::Nowhere | Place::Other => return Err(ERROR_INVALID_VALUE),
        };
        self.look(driver);
        if let Some(card) = card {
            driver.charge(card, size)?;
            driver.count_request(card, size);
        }
        Ok(self.add(card, size, properties, Vec::new()))
    }

    /// Physical memory for which somebody else pays, from a file that holds it meanwhile.
    pub(crate) fn import(&self, exported: &Exported, from: Lent) -> Handle {
        self.add(None, exported.size, exported.properties, vec![from])
    }

    /// A file names it from now on.
    pub(crate) fn lend(&self, handle: Handle, file: Lent) {
        if let Some(physical) = self.0.lock().physical.get_mut(&handle) {
            physical.lent.push(file);
        }
    }

    /// Gives back what only files named that are closed now.
    pub(crate) fn look(&self, driver: &Driver) {
        let mut state = self.0.lock();
        let unused = state.physical.iter().filter(|(_, one)| one.is_unused());
        let unused: Vec<Handle> = unused.map(|(handle, _)| *handle).collect();
        for handle in unused {
            state.settle(driver, handle);
        }
    }

    /// Puts memory behind a part of an array.
    pub(crate) fn map_array(&self, array: Handle, handle: Handle) -> Answer {
        let mut state = self.0.lock();
        let physical = state.physical.get_mut(&handle);
        let physical = physical.filter(|one| one.handles > 0);
        physical.ok_or(ERROR_INVALID_VALUE)?.mappings += 1;
        state.in_arrays.entry(array).or_default().push(handle);
        Ok(())
    }

    /// Takes all memory from behind an array.
    pub(crate) fn unmap_array(&self, driver: &Driver, array: Handle) {
        let mut state = self.0.lock();
        for handle in state.in_arrays.remove(&array).unwrap_or_default() {
            if let Some(physical) = state.physical.get_mut(&handle) {
                physical.mappings -= 1;
            }
            state.settle(driver, handle);
        }
    }

    fn add(
        &self,
        card: Option<usize>,
        size: u64,
        properties: AllocationProperties,
        lent: Vec<Lent>,
    ) -> Handle {
        let handle = new_handle();
        let physical = Physical {
            card,
            size,
            properties,
            handles: 1,
            mappings: 0,
            lent,
        };
        self.0.lock().physical.insert(handle, physical);
        handle
    }

    pub(crate) fn describe(&self, handle: Handle) -> Answer<Exported> {
        let state = self.0.lock();
        let physical = state.physical.get(&handle).filter(|one| one.handles > 0);
        let physical = physical.ok_or(ERROR_INVALID_VALUE)?;
        Ok(Exported {
            size: physical.size,
            properties: physical.properties,
        })
    }

    /// One handle less.
    pub(crate) fn release(&self, driver: &Driver, handle: Handle) -> Answer {
        let mut state = self.0.lock();
        let physical = state
            .physical
            .get_mut(&handle)
            .filter(|one| one.handles > 0);
        physical.ok_or(ERROR_INVALID_VALUE)?.handles -= 1;
        state.settle(driver, handle);
        Ok(())
    }

    /// One handle more, for the memory at an address.
    pub(crate) fn retain(&self, address: u64) -> Answer<Handle> {
        let mut state = self.0.lock();
        let handle = state.at(address).ok_or(ERROR_INVALID_VALUE)?.1.handle;
        let physical = state.physical.get_mut(&handle).ok_or(ERROR_INVALID_VALUE)?;
        physical.handles += 1;
        Ok(handle)
    }

    pub(crate) fn map(
        &self,
        driver: &Driver,
        (address, size): (u64, u64),
        handle: Handle,
    ) -> Answer {
        let mut state = self.0.lock();
        let end = address.checked_add(size).ok_or(ERROR_INVALID_VALUE)?;
        let reserved = state.reserved.range(..=address).next_back();
        let inside = reserved.is_some_and(|(base, (length, _))| end <= base + length);
        let before = state.mapped.range(..end).next_back();
        let taken = before.is_some_and(|(base, mapping)| base + mapping.size > address);
        let physical = state
            .physical
            .get_mut(&handle)
            .filter(|one| one.handles > 0);
        let physical = physical.ok_or(ERROR_INVALID_VALUE)?;
        if !inside || taken || size != physical.size || !address.is_multiple_of(GRANULARITY) {
            return Err(ERROR_INVALID_VALUE);
        }
        physical.mappings += 1;
        let mapping = Mapping {
            size,
            handle,
            access: 0,
        };
        state.mapped.insert(address, mapping);
        driver.heap.add(address, size, Kind::Mapped, None);
        Ok(())
    }

    /// Unmaps whole mappings that fill the range.
    pub(crate) fn unmap(&self, driver: &Driver, (address, size): (u64, u64)) -> Answer {
        let mut state = self.0.lock();
        let end = address.checked_add(size).ok_or(ERROR_INVALID_VALUE)?;
        let found: Vec<(u64, u64)> = state
            .mapped
            .range(address..end)
            .map(|(base, mapping)| (*base, mapping.size))
            .collect();
        let sum: u64 = found.iter().map(|(_, length)| length).sum();
        if found.first().map(|(base, _)| *base) != Some(address) || sum != size {
            return Err(ERROR_INVALID_VALUE);
        }
        for (base, length) in found {
            if let Some(mapping) = state.mapped.remove(&base) {
                if let Some(physical) = state.physical.get_mut(&mapping.handle) {
                    physical.mappings -= 1;
                }
                driver.heap.remove(base, |kind| kind == Kind::Mapped);
                arena::empty(base, length);
                state.settle(driver, mapping.handle);
            }
        }
        Ok(())
    }

    /// Sets the access to all mappings in a range.
    pub(crate) fn set_access(&self, (address, size): (u64, u64), access: u64) -> Answer {
        let mut state = self.0.lock();
        let end = address.checked_add(size).ok_or(ERROR_INVALID_VALUE)?;
        let mut covered = 0;
        for (_, mapping) in state.mapped.range_mut(address..end) {
            mapping.access = access;
            covered += mapping.size;
        }
        if covered == size && size > 0 {
            Ok(())
        } else {
            Err(ERROR_INVALID_VALUE)
        }
    }

    pub(crate) fn access(&self, address: u64) -> Answer<u64> {
        let state = self.0.lock();
        Ok(state.at(address).ok_or(ERROR_INVALID_VALUE)?.1.access)
    }
}

impl State {
    /// The mapping in which an address lies.
    fn at(&self, address: u64) -> Option<(u64, &Mapping)> {
        let (base, mapping) = self.mapped.range(..=address).next_back()?;
        (address - base < mapping.size).then_some((*base, mapping))
    }

    /// Gives physical memory back that nobody names any more.
    fn settle(&mut self, driver: &Driver, handle: Handle) {
        let found = self.physical.get_mut(&handle);
        let Some(found) = found.filter(|one| one.handles == 0 && one.mappings == 0) else {
            return;
        };
        if found.card.is_none() {
            // An import: nothing of ours holds the maker's memory any more.
            found.lent.clear();
        }
        if !found.is_unused() {
            return;
        }
        let physical = self.physical.remove(&handle);
        if let Some((card, size)) = physical.and_then(|one| Some((one.card?, one.size))) {
            driver.uncount_request(card, size);
            driver.release(card, size);
        }
    }
}
