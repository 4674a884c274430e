//! Aliquot's decisions, as pure functions of values.
//!
//!
//! Start with [`request`] (what a container asks for), then [`fit`] (whether a node can
//! take a pod, and on which devices), then [`ledger`] (what is allocated to whom).
//! `aliquot-k8s` turns Kubernetes objects into these types. This crate reads no clock, does
//! no I/O, draws no random numbers, logs nothing and knows no Kubernetes types.

#![forbid(unsafe_code)]

pub mod access;
pub mod allocation;
pub mod answer;
mod choose;
pub mod cluster;
pub mod context_memory;
pub mod decide;
pub mod demand;
pub mod devices;
pub mod dynamic_mig;
pub mod escape;
pub mod explain;
pub mod fit;
pub mod fragmentation;
pub mod gpu_policy;
pub mod hami;
pub mod id;
pub mod invariant;
pub mod inventory;
pub mod ledger;
pub mod memo;
pub mod mig;
pub mod namespaces;
pub mod node;
pub mod pin;
mod placement;
pub mod preemption;
pub mod preferences;
pub mod quantity;
pub mod quota;
pub mod reason;
pub mod replicas;
pub mod request;
pub mod rules;
pub mod scaling;
pub mod score;
mod scorer;
mod sharing;
pub mod suggest;
pub mod top;
pub mod typical;
pub mod units;
pub mod usage;

#[cfg(test)]
mod tests;

pub use allocation::{Allocation, Grant};
pub use cluster::Cluster;
pub use demand::{ContainerDemand, Demand, Stage};
pub use gpu_policy::GpuPolicy;
pub use id::{GpuUuid, Namespace, NodeName, PodUid};
pub use inventory::{Gpu, Inventory};
pub use ledger::Ledger;
pub use node::{HostResources, NodeState, Requests};
pub use preferences::Preferences;
pub use reason::{Reason, Refusal};
pub use replicas::Replicas;
pub use request::{Defaults, GpuRequest, Memory, ResourceNames};
pub use rules::DeviceRules;
pub use scaling::{Scaling, ScalingError};
pub use score::Policy;
pub use typical::{Census, Typical};
pub use units::{Mib, MilliCpu, Percent};
