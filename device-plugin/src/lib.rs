//! The node agent: what GPUs a node has, which seats the kubelet may hand out,
//! and what each container is given.
//!
//! Start with [`judge`] (may a pod have what its annotation says) and
//! [`prestart`] (what happens when the kubelet is about to start a container).
//! Fed by: the driver, the kubelet's device plugin protocol and checkpoint, the
//! API server's watch of this node.
//! Must not: choose a GPU; the scheduler did.

pub mod accepted;
pub mod agent;
mod answered;
pub mod audit;
pub mod by_env;
pub mod capabilities;
pub mod capacity;
pub mod cdi;
pub mod checkpoint;
mod clock;
pub mod collect;
pub mod drain;
mod dress;
pub mod driver_root;
pub mod environment;
pub mod fail_point;
pub mod figures;
pub mod files;
pub mod follow;
mod guard;
pub mod hami;
pub mod health;
pub mod host;
pub mod host_memory;
pub mod housekeeping;
pub mod inventory;
pub mod judge;
pub mod kept;
pub mod labels;
mod last_good;
pub mod leave;
pub mod limits;
pub mod metrics;
pub mod modes;
pub mod mps;
pub mod node;
mod objects;
pub mod occupants;
pub mod plugin;
pub mod plugins;
pub mod pod;
pub mod pods;
pub mod prestart;
pub mod profile_status;
pub mod proto;
pub mod register;
mod reserve;
pub mod runtime;
pub mod seat;
pub mod selinux;
pub mod settings;
pub mod sick;
pub mod source;
pub mod spare;
pub mod standing;
pub mod steer;
pub mod strays;
pub mod tenant;
pub mod tenant_may;
pub mod topology;
pub mod transition;
mod turns;
pub mod units;
pub mod vanished;
pub mod wanted;
pub mod xid;
mod xid_catalogue;

#[cfg(test)]
mod testing;
pub mod way_in;
