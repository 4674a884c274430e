//! The exported calls, by topic, each declared once (`calls`). What is not simulated is not here,
//! so that clients see it missing.

pub(crate) mod module;

mod arrays;
mod context;
mod context_state;
mod copy;
mod copy_shapes;
mod device;
mod host;
mod memory;
mod primary;
mod system;

use crate::calls::Call;

/// Every call.
pub(crate) fn tables() -> impl Iterator<Item = &'static [Call]> {
    [
        arrays::CALLS,
        context::CALLS,
        context_state::CALLS,
        copy::CALLS,
        copy_shapes::CALLS,
        device::CALLS,
        host::CALLS,
        memory::CALLS,
        module::CALLS,
        primary::CALLS,
        system::CALLS,
    ]
    .into_iter()
}
