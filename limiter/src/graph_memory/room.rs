//! Room for what launches of graphs take. A launch may wait within the driver until the card has
//! come further, for which other threads may have to do something: no lock is held then, and what was
//! reserved for it stays until it is made.
//!
//! Fed by: [`super`]. Must not: hold a lock across a launch, or wait for one without an end.

use crate::account::Account;
use crate::ffi::{Code, Device, Out, SUCCESS};
use crate::graph_nodes::Need;
use crate::ledger::in_blocks;
use crate::process::Process;
use crate::table::call;

/// `CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT`.
const USED: i32 = 0;
/// `CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT`.
const RESERVED: i32 = 2;

/// What is charged for graphs on a device.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Charged {
    bytes: u64,
    /// Launches that threads make now, and the most that these take together.
    launches: u32,
    peaks: u64,
}

fn attribute(device: Device, attribute: i32) -> Option<u64> {
    let mut bytes = 0;
    let code = call::cuDeviceGetGraphMemAttribute(device, attribute, Out::to(&mut bytes));
    (code == SUCCESS).then_some(bytes)
}

impl Charged {
    pub(super) fn bytes(self) -> u64 {
        self.bytes
    }

    /// Charges what the driver has reserved now, and nothing less while launches are made.
    pub(super) fn settle(&mut self, account: Account, device: Device) {
        let now = attribute(device, RESERVED).and_then(in_blocks);
        // Where it does not say: nobody knows what was taken.
        let now = now.unwrap_or(self.bytes);
        let now = if self.launches > 0 {
            now.max(self.bytes)
        } else {
            now
        };
        account.settle(self.bytes, now);
        self.bytes = now;
    }

    /// Takes what a launch may need beyond what is charged, and gives that; `again`: what the last
    /// one left is freed first, unless somebody freed something already: then there is less than all
    /// graphs left.
    fn reserve(&mut self, account: Account, need: Need, again: bool) -> Option<u64> {
        let mut used = attribute(need.device, USED).unwrap_or(0);
        if again && account.process.graphs.left(need.device) <= used {
            used = used.saturating_sub(need.left);
        }
        let most = used.saturating_add(self.peaks).saturating_add(need.peak);
        let growth = in_blocks(most)?.saturating_sub(self.bytes);
        let fits = growth == 0 || account.takes(growth, account.on_card());
        fits.then(|| {
            self.bytes += growth;
            self.launches += 1;
            self.peaks = self.peaks.saturating_add(need.peak);
            growth
        })
    }

    /// A launch was made, or will not be.
    fn end(&mut self, need: Need) {
        self.launches = self.launches.saturating_sub(1);
        self.peaks = self.peaks.saturating_sub(need.peak);
    }
}

/// Reserves for a launch; `None`: there is no room.
fn room_for(process: &Process, account: Account, need: Need, again: bool) -> Option<u64> {
    account.room(|_| {
        let mut all = process.graphs.charged.lock();
        let charged = all.entry(need.device).or_default();
        let others = charged.launches > 0;
        charged.reserve(account, need, again).ok_or(others)
    })
}

/// Makes a call that takes what a graph needs, if there is room; `again` as for
/// [`Charged::reserve`].
pub(super) fn with_room(
    process: &'static Process,
    name: &str,
    each: &[Need],
    again: bool,
    call: impl FnOnce() -> Code,
) -> Code {
    let mut taken: Vec<(Account, Need, u64)> = Vec::with_capacity(each.len());
    let mut refused = None;
    for need in each {
        match Account::of_device(need.device) {
            Ok(None) => {}
            Ok(Some(account)) => match room_for(process, account, *need, again) {
                Some(growth) => taken.push((account, *need, growth)),
                None => refused = Some(account.refuse(name, need.peak)),
            },
            Err(code) => refused = Some(code),
        }
        if refused.is_some() {
            break;
        }
    }
    let code = refused.unwrap_or_else(call);
    let mut all = process.graphs.charged.lock();
    for (account, need, growth) in taken {
        // Unless its last context ended meanwhile.
        let Some(charged) = all.get_mut(&need.device) else {
            continue;
        };
        charged.end(need);
        if refused.is_some() {
            charged.bytes = charged.bytes.saturating_sub(growth);
            account.release(growth);
        } else {
            charged.settle(account, need.device);
        }
    }
    code
}
