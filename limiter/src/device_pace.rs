//! What a process knows of its launches on each device: what they cost, which are being measured,
//! and the credit of its threads ([`crate::pace`]).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64};

use aliquot_pacer::cost::Costs;
use aliquot_pacer::credit::Credit;
use aliquot_pacer::scale::{Extent, Scales};
use aliquot_region::slot::ProcessSlot;

use crate::ffi::Handle;
use crate::marker::{ContextMarks, Markers};
use crate::stream::forget_captures;

#[derive(Clone, Copy, Debug)]
pub(crate) struct LaunchWork {
    /// Key of its kernel at its size, or of its graph.
    pub(crate) key: u64,
    /// The stream, as calls without per-thread default streams name it.
    pub(crate) stream: Handle,
    /// How much of which function it runs.
    pub(crate) extent: Extent,
}

/// What is known of the launches of this process, for each device of the limits page.
#[derive(Debug)]
pub(crate) struct Pace {
    pub(crate) devices: Vec<DevicePace>,
}

#[derive(Debug, Default)]
pub(crate) struct DevicePace {
    pub(crate) credit: Credit,
    costs: OnceLock<Costs>,
    scales: OnceLock<Scales>,
    pub(crate) markers: Markers,
    /// The host was alive when it was last checked.
    pub(crate) host_alive: AtomicBool,
    /// The heartbeat that was found too old: while it stays, nobody need check again.
    pub(crate) stale_heartbeat: AtomicU64,
    /// Measurements were waited for in vain; no more waits until one ends.
    pub(crate) stalled: AtomicBool,
    /// Until when work in progress delays no launch: it was waited for in vain.
    pub(crate) unqueued_until: AtomicU64,
}

impl Pace {
    pub(crate) fn new(devices: usize) -> Self {
        Self {
            devices: (0..devices).map(|_| DevicePace::default()).collect(),
        }
    }

    /// Takes out the events of a context that may end now, of each device: from here on none of
    /// them is queried.
    pub(crate) fn detach(&self, context: Handle) -> Vec<ContextMarks> {
        let devices = self.devices.iter();
        devices.map(|one| one.markers.detach(context)).collect()
    }

    /// The context lives on.
    pub(crate) fn put_back(&self, detached: Vec<ContextMarks>) {
        for (device_pace, marks) in self.devices.iter().zip(detached) {
            device_pace.markers.put_back(marks);
        }
    }

    /// A context ended, or is about to: pending measurements in it will never finish.
    pub(crate) fn forget(&self, slot: &ProcessSlot, context: Handle, detached: Vec<ContextMarks>) {
        forget_captures(context);
        let marked = self.devices.iter().zip(detached);
        for (device_index, (device_pace, marks)) in marked.enumerate() {
            for launch in marks.launches() {
                device_pace.costs().kernel(launch.key).end_measurement();
            }
            device_pace.report_running(slot, device_index);
        }
    }
}

impl DevicePace {
    #[inline]
    pub(crate) fn costs(&self) -> &Costs {
        self.costs.get_or_init(Costs::default)
    }

    /// Counts this process among those with work on the device while a launch is being measured.
    pub(crate) fn report_running(&self, slot: &ProcessSlot, device_index: usize) {
        let is_running = || self.markers.pending_of(None) > 0;
        let found = is_running();
        slot.set_running(device_index, found);
        if !found && is_running() {
            slot.set_running(device_index, true);
        }
    }

    /// What may be charged for a launch of an unknown kernel, instead of waiting until it is known.
    pub(crate) fn scales(&self) -> &Scales {
        self.scales.get_or_init(Scales::default)
    }
}
