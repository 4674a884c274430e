//! Pools that the driver made itself, and where each is.
//!
//! Fed by: [`crate::table`]. Must not: charge anything; what is taken from a pool is charged then.

use core::ffi::c_uint;

use super::Pool;
use crate::account::Account;
use crate::ffi::{Code, Device, Handle, Out, Place, SUCCESS};
use crate::view;

/// Where a pool is: on a device, or, as `None`, on the host.
fn note(code: Code, pool: Out<Handle>, device: Option<Device>) -> Code {
    let process = view::limited().filter(|_| code == SUCCESS);
    let (Some(pool), Some(process)) = (pool.get(), process) else {
        return code;
    };
    match device.map(|device| process.card(device)) {
        None => drop(process.pools.1.lock().insert(pool)),
        Some(Ok(Some(card))) => {
            let account = Account {
                process,
                card,
                context: 0,
            };
            let mut known = process.pools.0.lock();
            known.entry(pool).or_insert(Pool {
                account,
                charged: 0,
            });
        }
        // Of a card of others: what is asked of it is refused.
        Some(_) => {}
    }
    code
}

pub(crate) fn of_device(
    real: extern "C" fn(Out<Handle>, Device) -> Code,
    pool: Out<Handle>,
    device: Device,
) -> Code {
    note(real(pool, device), pool, Some(device))
}

pub(crate) fn of_place(
    real: extern "C" fn(Out<Handle>, Out<Place>, c_uint) -> Code,
    pool: Out<Handle>,
    place: Out<Place>,
    kind: c_uint,
) -> Code {
    let device = place.get().map(Place::device);
    note(real(pool, place, kind), pool, device.flatten())
}
