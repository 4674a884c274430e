//! Memory that the host lends to others while the container does not use it. A call within the
//! container's request that finds the device full is repeated while the host calls lent memory back
//! (docs/guides/resize.md).

use crate::charges::account::Account;
use crate::clock;
use crate::ffi::{Code, OUT_OF_MEMORY};
use aliquot_pacer::rule::HEARTBEAT_TIMEOUT;
use aliquot_region::limits::NOTHING_LENT;

/// How long a call waits, in milliseconds, until the host has written how long it may.
const UNTIL_KNOWN: u32 = 2000;

impl Account {
    /// Makes a call for which memory was reserved. If the driver has none though the container is
    /// within its request, reports that to the host and repeats the call for as long as the host says.
    pub(crate) fn call_until_lent_memory_returns(
        &self,
        bytes: u64,
        mut call: impl FnMut() -> Code,
    ) -> Code {
        let mut code = call();
        if code != OUT_OF_MEMORY {
            return code;
        }
        let begun = clock::now();
        let (slot, device) = (&self.process.slot, self.device_index);
        while code == OUT_OF_MEMORY && self.may_wait(begun) {
            slot.report_lacking(device, bytes, clock::now());
            clock::pause_for(clock::MILLISECOND * 5);
            code = call();
        }
        slot.report_lacking(device, 0, 0);
        code
    }

    /// Bytes that the container would get of a full device, because others borrow them.
    pub(crate) fn callable(&self) -> u64 {
        let (limits, device) = (&self.process.limits, self.device_index);
        let slot = &self.process.slot;
        let used = slot.used(device).saturating_add(limits.overhead(device));
        match limits.max_wait_ms(device) {
            0 | NOTHING_LENT => 0,
            _ => limits.request(device).saturating_sub(used),
        }
    }

    /// Whether the container is within its request, and the host calls back memory for it.
    fn may_wait(&self, begun: u64) -> bool {
        let (limits, device) = (&self.process.limits, self.device_index);
        let used = self.process.slot.used(device);
        let is_within = used.saturating_add(limits.overhead(device)) <= limits.request(device);
        let is_alive = clock::since_epoch().saturating_sub(limits.heartbeat()) < HEARTBEAT_TIMEOUT;
        let milliseconds = match limits.max_wait_ms(device) {
            0 => UNTIL_KNOWN,
            known => known,
        };
        let max_wait = u64::from(milliseconds) * clock::MILLISECOND;
        is_within && is_alive && clock::now().saturating_sub(begun) < max_wait
    }
}
