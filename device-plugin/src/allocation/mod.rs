//! What a container is given: validation of its allocation, what is stored of it, and the files
//! that are written for it.

pub mod accepted;
pub mod capabilities;
pub mod cdi;
pub mod collect;
pub mod container_directory;
pub mod context_memory;
pub mod counters_file;
pub mod device_nodes;
pub mod environment;
pub mod housekeeping;
pub mod injection;
pub mod instance_check;
pub mod limits;
pub mod node_allocations;
pub mod nvidia_cdi;
pub mod prepare;
pub mod resize;
pub mod start;
pub mod tenant_rights;
pub mod validation;
