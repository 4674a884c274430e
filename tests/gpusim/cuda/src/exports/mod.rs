//! The exported calls, by topic, each declared once (`calls`). Every name of a driver is exported;
//! a call that is not simulated answers so (`unsimulated`).

pub(crate) mod event;
pub(crate) mod launch;
pub(crate) mod library;
pub(crate) mod module;

mod arrays;
mod capturing;
mod checkpoint;
mod context;
mod context_state;
mod copy;
mod copy_async;
mod device;
mod graphs;
mod host;
mod ipc;
mod managed;
mod memory;
mod pools;
mod primary;
mod stream;
mod system;
mod tables;
mod unsimulated;
mod vmm;

use crate::calls::Call;

pub(crate) fn tables() -> impl Iterator<Item = &'static [Call]> {
    [
        arrays::CALLS,
        capturing::CALLS,
        checkpoint::CALLS,
        context::CALLS,
        context_state::CALLS,
        copy::CALLS,
        copy_async::CALLS,
        device::CALLS,
        event::CALLS,
        graphs::CALLS,
        host::CALLS,
        ipc::CALLS,
        launch::CALLS,
        library::CALLS,
        managed::CALLS,
        memory::CALLS,
        module::CALLS,
        pools::CALLS,
        primary::CALLS,
        stream::CALLS,
        system::CALLS,
        tables::CALLS,
        unsimulated::CALLS,
        vmm::CALLS,
    ]
    .into_iter()
}
