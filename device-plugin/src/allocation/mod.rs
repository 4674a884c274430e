//! What a container is given: validation of its allocation, what is stored of it, and the files
//! that are written for it.

pub mod accepted;
pub mod collect;
pub mod container_directory;
pub mod context_memory;
pub mod counters_file;
pub mod environment;
pub mod housekeeping;
pub mod instance_check;
pub mod limits;
pub mod node_allocations;
pub mod prepare;
pub mod resize;
pub mod start;
pub mod tenant_rights;
pub mod validation;
