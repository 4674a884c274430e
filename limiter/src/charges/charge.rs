//! What one block of device memory is charged where other processes may hold it too: each of them is
//! charged in full, and their container once (`aliquot_region::shared`).

use aliquot_region::shared::SharedBlock;
use aliquot_region::slot::Holding;

use super::account::Account;
use crate::process::ProcessState;

#[derive(Debug)]
pub(crate) struct Charge {
    pub(crate) account: Account,
    pub(crate) bytes: u64,
    /// The keys under which other processes find it.
    pub(crate) holdings: Vec<Holding>,
}

impl Charge {
    /// For `bytes` that were reserved.
    pub(crate) fn new(account: Account, bytes: u64) -> Self {
        Self {
            account,
            bytes,
            holdings: Vec::new(),
        }
    }

    /// Charges the block with this key if another process of the container holds it, or a descriptor
    /// does: the container has it already, whatever its limit.
    pub(crate) fn adopt(process: &'static ProcessState, key: u64) -> Option<Self> {
        let block = process.slot.shared_block(key)?;
        if block.device >= process.limits.devices() {
            return None;
        }
        let holding = process.slot.adopt(SharedBlock {
            imported: true,
            ..block
        });
        Some(Self {
            account: Account::new(process, block.device),
            bytes: block.bytes,
            holdings: vec![holding],
        })
    }

    /// From now on other processes may find the block under this key.
    pub(crate) fn hold(&mut self, key: u64, imported: bool) {
        if self.holdings.iter().any(|one| one.block.key == key) {
            return;
        }
        let block = SharedBlock {
            key,
            device: self.account.device_index,
            bytes: self.bytes,
            imported,
        };
        self.holdings.push(self.account.process.slot.hold(block));
    }

    /// This process no longer has the block.
    pub(crate) fn end(self) {
        let slot = &self.account.process.slot;
        slot.release_shared(self.account.device_index, &self.holdings, self.bytes);
    }
}

pub(crate) fn end(charge: Option<Charge>) {
    if let Some(charge) = charge {
        charge.end();
    }
}
