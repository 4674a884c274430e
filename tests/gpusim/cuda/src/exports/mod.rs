//! The exported calls, by topic, each declared once (`calls`). Every name of a driver is exported;
//! a call that is not simulated answers so (`unsimulated`).

pub(crate) mod event;
pub(crate) mod launch;
pub(crate) mod library;
pub(crate) mod linker;
pub(crate) mod module;
pub(crate) mod textures;

mod arrays;
mod capturing;
mod context;
mod context_state;
mod copy;
mod copy_async;
mod copy_blocks;
mod copy_shapes;
mod device;
mod graph_structure;
mod graphs;
mod host;
mod ipc;
mod kernels;
mod managed;
mod memory;
mod old_launch;
mod pools;
mod primary;
mod stream;
mod stream_words;
mod system;
mod tables;
mod unsimulated;
mod user_objects;
mod vmm;

use crate::calls::Call;

/// Every call.
pub(crate) fn tables() -> impl Iterator<Item = &'static [Call]> {
    [
        arrays::CALLS,
        capturing::CALLS,
        context::CALLS,
        context_state::CALLS,
        copy::CALLS,
        copy_async::CALLS,
        copy_blocks::CALLS,
        copy_shapes::CALLS,
        device::CALLS,
        event::CALLS,
        graph_structure::CALLS,
        graphs::CALLS,
        host::CALLS,
        ipc::CALLS,
        kernels::CALLS,
        launch::CALLS,
        library::CALLS,
        linker::CALLS,
        managed::CALLS,
        memory::CALLS,
        module::CALLS,
        old_launch::CALLS,
        pools::CALLS,
        primary::CALLS,
        stream::CALLS,
        stream_words::CALLS,
        system::CALLS,
        tables::CALLS,
        textures::CALLS,
        unsimulated::CALLS,
        user_objects::CALLS,
        vmm::CALLS,
    ]
    .into_iter()
}
