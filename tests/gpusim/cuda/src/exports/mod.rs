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
mod ipc;
mod managed;
mod memory;
mod pools;
mod primary;
mod stream;
mod system;
mod vmm;

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
        ipc::CALLS,
        managed::CALLS,
        memory::CALLS,
        module::CALLS,
        pools::CALLS,
        primary::CALLS,
        stream::CALLS,
        system::CALLS,
        vmm::CALLS,
    ]
    .into_iter()
}
