//! What is charged for the memory of graphs' allocation nodes.

use std::collections::HashMap;

use super::account::Account;
use super::allocations::in_blocks;
use crate::driver::call;
use crate::ffi::{Device, Handle, Out, SUCCESS};
use crate::lock::FutexLock;
use crate::process::{PerProcess, ProcessState};

/// What a launch of a graph takes of one device.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DeviceNeed {
    pub(crate) device: Device,
    /// Highest number of bytes at once.
    pub(crate) peak: u64,
    /// Bytes that remain allocated when it is done.
    pub(crate) remaining: u64,
}

/// What launches of a graph take.
#[derive(Clone, Debug)]
pub(crate) struct GraphNeeds {
    /// One entry for each device.
    pub(crate) each: Vec<DeviceNeed>,
    /// The previous launch's remaining memory is freed first.
    pub(crate) frees_before: bool,
    /// It was launched.
    pub(crate) launched: bool,
}

/// What is charged for graphs, and what instantiated graphs need.
#[derive(Debug, Default)]
pub(crate) struct GraphMemory {
    pub(crate) charged: FutexLock<HashMap<Device, GraphCharge>>,
    pub(crate) needs: FutexLock<HashMap<Handle, GraphNeeds>>,
    /// Remaining memory of graphs that were destroyed since.
    orphaned: FutexLock<HashMap<Device, u64>>,
}

impl GraphMemory {
    pub(crate) fn of(process: &ProcessState) -> &'static Self {
        static GRAPH_MEMORY: PerProcess<GraphMemory> = PerProcess::new();
        GRAPH_MEMORY.of(process)
    }

    /// Charges what the driver has reserved now.
    pub(crate) fn refresh(&self, process: &'static ProcessState) {
        let mut charged = self.charged.lock();
        for (device, device_index) in process.contexts.devices() {
            let account = Account {
                process,
                device_index,
                context: 0,
            };
            charged.entry(device).or_default().settle(account, device);
        }
    }

    /// A context of a device ended; the last one takes the memory of graphs with it.
    pub(crate) fn end(&self, process: &ProcessState, device: Device, device_index: usize) {
        let left = process.contexts.devices();
        if left.iter().any(|(one, _)| *one == device) {
            return;
        }
        self.orphaned.lock().remove(&device);
        if let Some(charged) = self.charged.lock().remove(&device) {
            process.slot.release(device_index, charged.bytes);
        }
    }

    /// An instantiated graph is destroyed; what its launches left remains.
    pub(crate) fn forget(&self, graph: Handle) {
        let gone = self.needs.lock().remove(&graph);
        let mut orphaned = self.orphaned.lock();
        for need in gone
            .iter()
            .filter(|gone| gone.launched)
            .flat_map(|gone| &gone.each)
        {
            let sum = orphaned.entry(need.device).or_default();
            *sum = sum.saturating_add(need.remaining);
        }
    }

    /// Reserves for a launch; `frees_previous` as for [`GraphCharge::reserve`]. The error is whether
    /// other threads are launching.
    pub(crate) fn try_reserve(
        &self,
        account: Account,
        need: DeviceNeed,
        frees_previous: bool,
    ) -> Result<u64, bool> {
        let mut all = self.charged.lock();
        let charged = all.entry(need.device).or_default();
        let has_others = charged.launches > 0;
        charged
            .reserve(account, need, frees_previous)
            .ok_or(has_others)
    }

    /// Memory that all graphs left on a device, if none of it was freed since.
    fn remaining(&self, device: Device) -> u64 {
        let orphaned = self.orphaned.lock().get(&device).copied().unwrap_or(0);
        let needs = self.needs.lock();
        let launched = needs.values().filter(|needs| needs.launched);
        let each = launched.flat_map(|needs| &needs.each);
        let left = each.filter(|need| need.device == device);
        left.fold(orphaned, |sum, need| sum.saturating_add(need.remaining))
    }
}

/// `CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT`.
const USED: i32 = 0;
/// `CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT`.
const RESERVED: i32 = 2;

/// What is charged for graphs on a device.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GraphCharge {
    pub(crate) bytes: u64,
    /// Launches that threads are making, and the most that these take together.
    launches: u32,
    peaks: u64,
}

fn attribute(device: Device, attribute: i32) -> Option<u64> {
    let mut bytes = 0;
    let code = call::cuDeviceGetGraphMemAttribute(device, attribute, Out::to(&mut bytes));
    (code == SUCCESS).then_some(bytes)
}

impl GraphCharge {
    /// Charges what the driver has reserved now, and not less while launches are under way.
    pub(crate) fn settle(&mut self, account: Account, device: Device) {
        let now = attribute(device, RESERVED).and_then(in_blocks);
        // If the driver does not say, nobody knows what was taken.
        let now = now.unwrap_or(self.bytes);
        let now = if self.launches > 0 {
            now.max(self.bytes)
        } else {
            now
        };
        account.settle(self.bytes, now);
        self.bytes = now;
    }

    /// Reserves what a launch may need beyond the current charge, and returns that.
    /// `frees_previous`: the memory of the previous launch is freed first, unless some was freed
    /// already; then less is used than all graphs left.
    fn reserve(&mut self, account: Account, need: DeviceNeed, frees_previous: bool) -> Option<u64> {
        let mut used = attribute(need.device, USED).unwrap_or(0);
        if frees_previous && GraphMemory::of(account.process).remaining(need.device) <= used {
            used = used.saturating_sub(need.remaining);
        }
        let most = used.saturating_add(self.peaks).saturating_add(need.peak);
        let growth = in_blocks(most)?.saturating_sub(self.bytes);
        let fits = growth == 0 || account.try_reserve(growth, account.device_limit());
        fits.then(|| {
            self.bytes += growth;
            self.launches += 1;
            self.peaks = self.peaks.saturating_add(need.peak);
            growth
        })
    }

    /// A launch returned, or will not be made.
    pub(crate) fn end(&mut self, need: DeviceNeed) {
        self.launches = self.launches.saturating_sub(1);
        self.peaks = self.peaks.saturating_sub(need.peak);
    }
}
