//! The contexts of this process, each with its device and what was charged for it.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::collections::HashMap;

use aliquot_region::slot::ProcessSlot;

use crate::ffi::{Device, Handle, long};
use crate::lock::FutexLock;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Context {
    pub(crate) device_index: usize,
    pub(crate) device: Device,
    pub(crate) primary: bool,
    pub(crate) bytes: u64,
    /// The context with which its allocations end: for a green context the primary one.
    pub(crate) owner: Handle,
}

/// Bits of `last` that are the device index.
const INDEX_BITS: u32 = 8;

#[derive(Debug, Default)]
pub(crate) struct Contexts {
    known: FutexLock<HashMap<Handle, Context>>,
    /// The last context that was looked up, above its device index.
    last: AtomicU64,
    /// There are, or were, green contexts.
    green: AtomicBool,
}

impl Contexts {
    /// Devices with a context, each once, with their indexes.
    pub(crate) fn devices(&self) -> Vec<(Device, usize)> {
        let known = self.known.lock();
        let all = known.values();
        let mut found: Vec<_> = all.map(|one| (one.device, one.device_index)).collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Whether the primary context of a device is known.
    pub(crate) fn has_primary(&self, device: Device) -> bool {
        let known = self.known.lock();
        known
            .values()
            .any(|one| one.primary && one.device == device)
    }

    /// The context with which the allocations in a context end.
    pub(crate) fn owner(&self, context: Handle) -> Handle {
        if !self.green.load(Ordering::Relaxed) {
            return context;
        }
        let known = self.known.lock();
        known.get(&context).map_or(context, |known| known.owner)
    }

    pub(crate) fn get(&self, context: Handle) -> Option<Context> {
        self.known.lock().get(&context).copied()
    }

    /// Device index of the context that was looked up last, if it is this one.
    #[inline]
    pub(crate) fn last_device_index(&self, context: Handle) -> Option<usize> {
        let last = self.last.load(Ordering::Relaxed);
        (last >> INDEX_BITS == long(context)).then(|| usize::try_from(last & 0xff).unwrap_or(0))
    }

    pub(crate) fn remember_last(&self, context: Handle, device_index: usize) {
        let last = long(context) << INDEX_BITS | long(device_index);
        self.last.store(last, Ordering::Relaxed);
    }

    /// A context ended, and its handle may come to mean another.
    pub(crate) fn forget_last(&self) {
        self.last.store(0, Ordering::Relaxed);
    }

    /// Adds a context; false if it is known.
    pub(crate) fn insert(&self, handle: Handle, context: Context) -> bool {
        let mut known = self.known.lock();
        let is_new = !known.contains_key(&handle);
        if is_new {
            known.insert(handle, context);
        }
        is_new
    }

    pub(crate) fn remove(&self, context: Handle) -> Option<Context> {
        self.known.lock().remove(&context)
    }

    /// Undoes [`Self::remove`]: the context lives on. What another thread recorded of it meanwhile.
    pub(crate) fn put_back(&self, handle: Handle, context: Context) -> Option<Context> {
        self.known.lock().insert(handle, context)
    }

    /// The primary context of a device, and the green ones, which end with it.
    pub(crate) fn of_primary(&self, device: Device) -> Vec<Handle> {
        let known = self.known.lock();
        let primary = known
            .iter()
            .filter(|(_, one)| one.primary && one.device == device);
        let ends: Vec<Handle> = primary.map(|(handle, _)| *handle).collect();
        let owned = known.iter().filter(|(_, one)| ends.contains(&one.owner));
        owned.map(|(handle, _)| *handle).collect()
    }

    /// Removes the primary context of a device, and the green ones, which end with it.
    pub(crate) fn remove_primary(&self, device: Device) -> (Vec<(Handle, Context)>, Vec<Handle>) {
        let mut known = self.known.lock();
        let primary: Vec<_> = known
            .extract_if(|_, one| one.primary && one.device == device)
            .collect();
        let with =
            known.extract_if(|_, one| primary.iter().any(|(handle, _)| one.owner == *handle));
        let green = with.map(|(handle, _)| handle).collect();
        (primary, green)
    }

    /// Changes a context's charge for something in it from `old` to `new` bytes.
    pub(crate) fn resize(&self, slot: &ProcessSlot, context: Handle, old: u64, new: u64) {
        let more = new.wrapping_sub(old);
        if let Some(known) = self.known.lock().get_mut(&context) {
            known.bytes = known.bytes.wrapping_add(more);
            slot.note_contexts(known.device_index, more);
        }
    }

    /// Records a green context, which takes nothing beside its primary one.
    pub(crate) fn record_green(&self, context: Handle, device: Device) {
        let mut known = self.known.lock();
        let mut all = known.iter();
        let primary = all.find(|(_, one)| one.primary && one.device == device);
        if let Some((owner, primary)) = primary.map(|(owner, one)| (*owner, *one)) {
            self.green.store(true, Ordering::Relaxed);
            let green = Context {
                primary: false,
                bytes: 0,
                owner,
                ..primary
            };
            known.entry(context).or_insert(green);
        }
    }

    /// A green context ended; its primary one may live on.
    pub(crate) fn forget_green(&self, context: Handle) {
        self.forget_last();
        let mut known = self.known.lock();
        if known.get(&context).is_some_and(|one| one.owner != context) {
            known.remove(&context);
        }
    }
}
