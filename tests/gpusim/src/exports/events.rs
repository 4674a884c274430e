//! Event sets: registrations for XIDs, and waiting for them. Every set gets each XID that was
//! reported after its GPU was registered, in the order of the machine's history.

use std::collections::BTreeMap;
use std::ffi::{c_uint, c_ulonglong};
use std::time::{Duration, Instant};

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlEventData_t, nvmlEventSet_t, nvmlEventTypeXidCriticalError,
    nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST as GPU_IS_LOST,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED,
    nvmlReturn_enum_NVML_ERROR_TIMEOUT as TIMEOUT,
};
use parking_lot::Mutex;

use super::{calls, getters};
use crate::ffi::{Answer, Out};
use crate::library;
use crate::model::{Machine, Xid};

const XID: c_ulonglong = nvmlEventTypeXidCriticalError as c_ulonglong;
/// Memory errors, performance states and clocks may be registered; they never happen here.
const SUPPORTED: c_ulonglong = 0x1 | 0x2 | 0x4 | XID | 0x10;

struct Sets {
    made: usize,
    /// Of each GPU that is registered for XIDs the sequence of the first one not yet reported.
    open: BTreeMap<usize, BTreeMap<usize, u64>>,
}

static SETS: Mutex<Sets> = Mutex::new(Sets {
    made: 0,
    open: BTreeMap::new(),
});

getters! {
    nvmlDeviceGetSupportedEventTypes: c_ulonglong = |_| Ok(SUPPORTED);
}

calls! {
    nvmlEventSetCreate(set: Out<nvmlEventSet_t>) {
        library::state()?;
        let mut sets = SETS.lock();
        let id = sets.made + 1;
        // A set's handle is its number, never read through.
        set.put(std::ptr::without_provenance_mut(id))?;
        sets.made = id;
        sets.open.insert(id, BTreeMap::new());
        Ok(())
    }

    nvmlEventSetFree(set: nvmlEventSet_t) {
        library::state()?;
        SETS.lock()
            .open
            .remove(&set.addr())
            .map(drop)
            .ok_or(INVALID_ARGUMENT)
    }

    nvmlDeviceRegisterEvents(device: nvmlDevice_t, types: c_ulonglong, set: nvmlEventSet_t) {
        library::gpu(device)?;
        let index = library::index(device)?;
        if types & !SUPPORTED != 0 {
            return Err(NOT_SUPPORTED);
        }
        let next = library::machine()?.next_xid;
        let mut sets = SETS.lock();
        let registrations = sets.open.get_mut(&set.addr()).ok_or(INVALID_ARGUMENT)?;
        if types & XID != 0 {
            registrations.entry(index).or_insert(next);
        }
        Ok(())
    }

    nvmlEventSetWait_v2(set: nvmlEventSet_t, data: Out<nvmlEventData_t>, timeout_ms: c_uint) {
        let state = library::state()?;
        if data.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        let deadline = Instant::now() + Duration::from_millis(timeout_ms.into());
        loop {
            let seen = state.generation();
            if let Some(xid) = next_event(set, &state.machine())? {
                return data.put(event(&xid)?);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(TIMEOUT);
            }
            state.wait_change(seen, left);
        }
    }
}

/// Takes the oldest unreported XID of the set's GPUs. If there is none and a GPU is lost, reports
/// that.
fn next_event(set: nvmlEventSet_t, machine: &Machine) -> Answer<Option<Xid>> {
    let mut sets = SETS.lock();
    let registrations = sets.open.get_mut(&set.addr()).ok_or(INVALID_ARGUMENT)?;
    let untold = |xid: &&Xid| {
        let gpu = usize::try_from(xid.gpu).ok();
        let next = gpu.and_then(|gpu| registrations.get(&gpu));
        xid.sequence > 0 && next.is_some_and(|next| xid.sequence >= *next)
    };
    let oldest = machine
        .xids
        .iter()
        .filter(untold)
        .min_by_key(|xid| xid.sequence);
    if let Some(xid) = oldest {
        let index = usize::try_from(xid.gpu).map_err(|_| INVALID_ARGUMENT)?;
        registrations.insert(index, xid.sequence + 1);
        return Ok(Some(*xid));
    }
    let lost = |index: &usize| machine.gpus[*index].lost != 0;
    if registrations.keys().any(lost) {
        return Err(GPU_IS_LOST);
    }
    Ok(None)
}

fn event(xid: &Xid) -> Answer<nvmlEventData_t> {
    let index = usize::try_from(xid.gpu).map_err(|_| INVALID_ARGUMENT)?;
    Ok(nvmlEventData_t {
        device: library::handle(index),
        eventType: XID,
        eventData: xid.code.into(),
        gpuInstanceId: xid.gpu_instance,
        computeInstanceId: xid.compute_instance,
    })
}
