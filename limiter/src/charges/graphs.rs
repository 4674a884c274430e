//! What is charged for the memory of graphs' allocation nodes.

use std::collections::HashMap;

use super::account::Account;
use super::allocations::in_blocks;
use crate::driver::call;
use crate::ffi::{Device, Out, SUCCESS};
use crate::lock::FutexLock;
use crate::process::{PerProcess, ProcessState};

/// `CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT`.
const RESERVED: i32 = 2;

static CHARGED: PerProcess<FutexLock<HashMap<Device, u64>>> = PerProcess::new();

/// Charges what the driver has reserved now.
pub(crate) fn refresh(process: &'static ProcessState) {
    let mut charged = CHARGED.of(process).lock();
    for (device, device_index) in process.contexts.devices() {
        // If the driver does not say, nobody knows what was taken or released.
        let Some(now) = reserved(device) else {
            continue;
        };
        let before = charged.insert(device, now).unwrap_or(0);
        Account::new(process, device_index).correct_reservation(before, now);
    }
}

/// A context of a device ended; the last one takes the memory of graphs with it.
pub(crate) fn end(process: &ProcessState, device: Device, device_index: usize) {
    let left = process.contexts.devices();
    if left.iter().any(|(one, _)| *one == device) {
        return;
    }
    if let Some(charged) = CHARGED.of(process).lock().remove(&device) {
        process.slot.release(device_index, charged);
    }
}

fn reserved(device: Device) -> Option<u64> {
    let mut bytes = 0;
    let code = call::cuDeviceGetGraphMemAttribute(device, RESERVED, Out::to(&mut bytes));
    (code == SUCCESS).then(|| in_blocks(bytes))?
}
