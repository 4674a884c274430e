//! mig: a GPU partitioned into instances, by a fixed layout or dynamically. `partitioner` creates
//! and destroys them.

pub mod instance_names;
mod partitioner;
pub mod plan;

pub(super) use partitioner::MigPartitioner;
