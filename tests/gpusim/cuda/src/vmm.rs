//! Virtual memory management: reserved addresses, physical memory by handle, and mappings. Memory
//! stays charged to its GPU until the last handle and the last mapping are gone, those of arrays
//! and of other processes included, and every descriptor that stands for it is closed.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;

use aliquot_gpusim_model::exports::SharedMemory;

use parking_lot::Mutex;

use crate::arena;
use crate::codes::{ERROR_INVALID_VALUE, ERROR_OPERATING_SYSTEM, ERROR_OUT_OF_MEMORY};
use crate::driver::Driver;
use crate::ffi::Answer;
use crate::heap::Kind;
use crate::objects::new_handle;
use crate::types::{AllocationProperties, Handle, Location, MemoryLocation};

/// `CU_MEM_LOCATION_TYPE_DEVICE`.
pub(crate) const ON_DEVICE: u32 = 1;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub(crate) const FILE: u32 = 1;
/// Sizes and addresses are multiples of this.
pub(crate) const GRANULARITY: u64 = 2 << 20;

#[derive(Default)]
pub(crate) struct Vmm(Mutex<State>);

#[derive(Default)]
struct State {
    /// Length by address, with the length of the range behind it.
    reserved: BTreeMap<u64, (u64, u64)>,
    physical: HashMap<Handle, PhysicalMemory>,
    mapped: BTreeMap<u64, Mapping>,
    /// The physical memory behind parts of sparse arrays.
    in_arrays: HashMap<Handle, Vec<Handle>>,
}

struct PhysicalMemory {
    /// The GPU that is charged; `None`: the host, or another process.
    gpu_index: Option<usize>,
    size: u64,
    properties: AllocationProperties,
    handles: u64,
    mappings: u64,
    /// Its number for other processes.
    number: Option<u64>,
    /// Of an import: the GPU on which it is, and the descriptor that keeps it.
    import: Option<(usize, File)>,
}

struct Mapping {
    size: u64,
    handle: Handle,
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

    /// Creates physical memory, charged to this process.
    pub(crate) fn create(
        &self,
        driver: &Driver,
        size: u64,
        properties: AllocationProperties,
    ) -> Answer<Handle> {
        if size == 0 || !size.is_multiple_of(GRANULARITY) || properties.kind != 1 {
            return Err(ERROR_INVALID_VALUE);
        }
        let gpu_index = match properties.location.place() {
            MemoryLocation::Gpu(device) => Some(driver.gpu_index(device)?),
            MemoryLocation::Host => None,
            MemoryLocation::Nowhere | MemoryLocation::Other => return Err(ERROR_INVALID_VALUE),
        };
        if let Some(gpu_index) = gpu_index {
            driver.charge(gpu_index, size)?;
        }
        Ok(self.add(gpu_index, size, properties, None))
    }

    /// A new descriptor of physical memory, for another process.
    pub(crate) fn export(&self, driver: &Driver, handle: Handle) -> Answer<File> {
        let mut state = self.0.lock();
        let physical = state.with_handle(handle)?;
        if physical.properties.handle_types & FILE == 0 {
            return Err(ERROR_INVALID_VALUE);
        }
        let member = driver.member();
        let location = physical.properties.location;
        let place = (location.kind, location.id.cast_unsigned());
        let made = match (physical.number, physical.gpu_index) {
            (Some(number), _) => Ok(number),
            (None, Some(gpu_index)) => member.share(gpu_index, physical.size, place),
            (None, None) => return Err(ERROR_INVALID_VALUE),
        };
        let file = made.and_then(|number| {
            physical.number = Some(number);
            member.descriptor(number)
        });
        file.map_err(|_| ERROR_OPERATING_SYSTEM)
    }

    /// Physical memory charged to another process, and kept by a descriptor.
    pub(crate) fn import(&self, driver: &Driver, shared: SharedMemory) -> Answer<Handle> {
        let keeper = driver.member().descriptor(shared.number);
        let keeper = keeper.map_err(|_| ERROR_OPERATING_SYSTEM)?;
        let (kind, id) = shared.place;
        let location = Location {
            kind,
            id: id.cast_signed(),
        };
        let properties = AllocationProperties {
            kind: 1,
            handle_types: FILE,
            location,
            windows: 0,
            flags: [0; 8],
        };
        driver.count_import(shared.gpu_index, shared.bytes);
        let import = Some((shared.gpu_index, keeper));
        let handle = self.add(None, shared.bytes, properties, import);
        if let Some(made) = self.0.lock().physical.get_mut(&handle) {
            made.number = Some(shared.number);
        }
        Ok(handle)
    }

    /// Maps memory to a part of an array.
    pub(crate) fn map_array(&self, array: Handle, handle: Handle) -> Answer {
        let mut state = self.0.lock();
        state.with_handle(handle)?.mappings += 1;
        state.in_arrays.entry(array).or_default().push(handle);
        Ok(())
    }

    /// Unmaps all memory of an array.
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
        gpu_index: Option<usize>,
        size: u64,
        properties: AllocationProperties,
        import: Option<(usize, File)>,
    ) -> Handle {
        let handle = new_handle();
        let physical = PhysicalMemory {
            gpu_index,
            size,
            properties,
            handles: 1,
            mappings: 0,
            number: None,
            import,
        };
        self.0.lock().physical.insert(handle, physical);
        handle
    }

    /// With which properties it was created.
    pub(crate) fn properties(&self, handle: Handle) -> Answer<AllocationProperties> {
        let mut state = self.0.lock();
        Ok(state.with_handle(handle)?.properties)
    }

    pub(crate) fn release(&self, driver: &Driver, handle: Handle) -> Answer {
        let mut state = self.0.lock();
        state.with_handle(handle)?.handles -= 1;
        state.settle(driver, handle);
        Ok(())
    }

    /// Adds a handle, for the memory at an address.
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
        let physical = state.with_handle(handle)?;
        if !inside || taken || size != physical.size || !address.is_multiple_of(GRANULARITY) {
            return Err(ERROR_INVALID_VALUE);
        }
        physical.mappings += 1;
        let mapping = Mapping { size, handle };
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
    pub(crate) fn set_access(&self, (address, size): (u64, u64)) -> Answer {
        let state = self.0.lock();
        let end = address.checked_add(size).ok_or(ERROR_INVALID_VALUE)?;
        let mapped = state.mapped.range(address..end);
        let covered: u64 = mapped.map(|(_, mapping)| mapping.size).sum();
        if covered == size && size > 0 {
            Ok(())
        } else {
            Err(ERROR_INVALID_VALUE)
        }
    }
}

impl State {
    /// The physical memory of a handle that is not released.
    fn with_handle(&mut self, handle: Handle) -> Answer<&mut PhysicalMemory> {
        let physical = self.physical.get_mut(&handle);
        let physical = physical.filter(|one| one.handles > 0);
        physical.ok_or(ERROR_INVALID_VALUE)
    }

    /// The mapping in which an address lies.
    fn at(&self, address: u64) -> Option<(u64, &Mapping)> {
        let (base, mapping) = self.mapped.range(..=address).next_back()?;
        (address - base < mapping.size).then_some((*base, mapping))
    }

    /// Releases physical memory without handles and mappings.
    fn settle(&mut self, driver: &Driver, handle: Handle) {
        let found = self.physical.get(&handle);
        if !found.is_some_and(|one| one.handles == 0 && one.mappings == 0) {
            return;
        }
        let Some(gone) = self.physical.remove(&handle) else {
            return;
        };
        if let Some(gpu_index) = gone.gpu_index {
            match gone.number {
                Some(number) => driver.member().release_shared(gpu_index, number, gone.size),
                None => driver.release(gpu_index, gone.size),
            }
        }
        if let Some((gpu_index, _)) = gone.import {
            driver.uncount_import(gpu_index, gone.size);
        }
    }
}
