//! mig: a GPU partitioned into instances, by a fixed layout or dynamically. `partitioner` creates
//! and destroys them.

mod last_instances;
mod partitioner;
pub mod plan;

pub(super) use partitioner::MigPartitioner;
