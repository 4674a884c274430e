//! Pools that the driver made itself, and where each is.
//!
//! Fed by: [`crate::table`]. Must not: charge anything; what is taken from a pool is charged then.

use core::ffi::c_uint;

use super::Pool;
use crate::account::Account;
use crate::ffi::{Code, Device, Handle, Out, Place, SUCCESS, Where};
use crate::view;

/// Where a pool is.
fn note(code: Code, pool: Out<Handle>, place: Where) -> Code {
    let process = view::limited().filter(|_| code == SUCCESS);
    let (Some(pool), Some(process)) = (pool.get(), process) else {
        return code;
    };
    let device = match place {
        Where::Host => {
            process.pools.1.lock().insert(pool);
            return code;
        }
        Where::Card(device) => device,
        // What is taken of it is charged on the card for which it is used.
        Where::Moving | Where::Unknown(_) => return code,
    };
    // Of a card of others nothing is noted: what is taken of it is charged as if it were ours.
    if let Ok(Some(card)) = process.card(device) {
        let account = Account {
            process,
            card,
            context: 0,
        };
        let mut known = process.pools.0.lock();
        known.entry(pool).or_insert_with(|| Pool::new(account));
    }
    code
}

pub(crate) fn of_device(
    real: extern "C" fn(Out<Handle>, Device) -> Code,
    pool: Out<Handle>,
    device: Device,
) -> Code {
    note(real(pool, device), pool, Where::Card(device))
}

pub(crate) fn of_place(
    real: extern "C" fn(Out<Handle>, Out<Place>, c_uint) -> Code,
    pool: Out<Handle>,
    place: Out<Place>,
    kind: c_uint,
) -> Code {
    let code = real(pool, place, kind);
    match place.get() {
        Some(place) => note(code, pool, place.of(kind)),
        None => code,
    }
}
