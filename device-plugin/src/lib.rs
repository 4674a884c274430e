//! The node agent: what GPUs a node has, which replicas the kubelet may hand out,
//! and what each container is given.
//!
//! Start with [`validation`] (may a pod have what its annotation says) and
//! [`prestart`] (what happens when the kubelet is about to start a container).
//! The agent never chooses a GPU: the scheduler did.

pub mod accepted;
pub mod agent;
pub mod allocatable;
pub mod audit;
pub mod call_state;
pub mod capabilities;
pub mod capacity;
pub mod cdi;
pub mod checkpoint;
mod clock;
pub mod collect;
mod container_edits;
pub mod context_memory;
pub mod counters_file;
pub mod desired_layout;
pub mod device_failures;
pub mod device_id;
pub mod device_metrics;
pub mod device_nodes;
pub mod device_users;
pub mod drain;
pub mod driver_root;
pub mod driver_wait;
pub mod environment;
pub mod fail_point;
pub mod files;
pub mod hami;
pub mod health;
pub mod host;
pub mod host_memory;
pub mod housekeeping;
pub mod injection;
pub mod inventory;
pub mod labels;
pub mod layout_reconciler;
pub mod leave;
pub mod limits;
pub mod metrics;
pub mod modes;
pub mod monitor_evictions;
pub mod mps;
mod namespace_reservations;
pub mod node;
pub mod non_cdi;
pub mod nvidia_cdi;
mod objects;
pub mod plugin;
pub mod plugins;
pub mod pod;
pub mod pods;
pub mod preallocated;
pub mod preferred_allocation;
pub mod prestart;
pub mod profile_source;
pub mod profile_status;
pub mod proto;
pub mod register;
pub mod removed_resources;
pub mod resource_owner;
pub mod runtime;
pub mod selinux;
pub mod settings;
pub mod stored_layout;
mod task_supervisor;
pub mod tenant_rights;
pub mod topology;
pub mod transition;
pub mod uncorrected;
pub mod validation;
mod worker_pool;
pub mod xid;
mod xid_catalogue;

#[cfg(test)]
mod testing;
