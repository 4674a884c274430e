//! Memory of graphs' allocation nodes: the driver reserves it of a card when a graph is launched,
//! and keeps it until somebody trims it. What it says it has reserved is charged.
//!
//! Fed by: [`crate::account`] and [`crate::view`], before anything is refused or called free.
//! Must not: give back what the driver still has.

use std::collections::HashMap;

use crate::account::Account;
use crate::ffi::{Device, Out, SUCCESS};
use crate::ledger::in_blocks;
use crate::lock::Lock;
use crate::process::Process;
use crate::table::call;

/// `CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT`.
const RESERVED: i32 = 2;

/// What is charged for graphs, by device.
#[derive(Debug, Default)]
pub(crate) struct GraphMemory(Lock<HashMap<Device, u64>>);

impl GraphMemory {
    /// Charges what the driver has reserved now.
    pub(crate) fn look(&self, process: &'static Process) {
        let mut charged = self.0.lock();
        for (device, card) in process.contexts.devices() {
            let mut bytes = 0;
            let code = call::cuDeviceGetGraphMemAttribute(device, RESERVED, Out::to(&mut bytes));
            let Some(now) = in_blocks(bytes).filter(|_| code == SUCCESS) else {
                continue;
            };
            let before = charged.insert(device, now).unwrap_or(0);
            let account = Account {
                process,
                card,
                context: 0,
            };
            account.settle(before, now);
        }
    }
}
