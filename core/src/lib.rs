//! The decisions of Aliquot as functions of values.
//!
//! Start with [`request`] (what a container wrote), then [`fit`] (may a node take
//! a pod, and on which cards), then [`ledger`] (who was given what).
//! Fed by: `aliquot-k8s`, which turns Kubernetes objects into these types.
//! Must not: read clocks, do IO, draw random numbers, log, or know Kubernetes types.

#![forbid(unsafe_code)]

pub mod allocation;
pub mod answer;
pub mod card_policy;
mod choose;
pub mod cluster;
pub mod cut;
pub mod decide;
pub mod demand;
pub mod escape;
pub mod explain;
pub mod fit;
pub mod fragmentation;
pub mod hami;
pub mod id;
pub mod invariant;
pub mod inventory;
mod judge;
pub mod ledger;
pub mod memo;
pub mod mig;
pub mod node;
pub mod pin;
mod placing;
pub mod preemption;
pub mod quantity;
pub mod quota;
pub mod reason;
pub mod request;
pub mod rules;
pub mod scaling;
pub mod score;
pub mod seats;
pub mod seen;
mod share;
pub mod spaces;
pub mod suggest;
pub mod top;
pub mod typical;
pub mod units;
pub mod usage;
pub mod wishes;

#[cfg(test)]
mod tests;

pub use allocation::{Allocation, Grant};
pub use card_policy::CardPolicy;
pub use cluster::Cluster;
pub use demand::{ContainerDemand, Demand, Stage};
pub use id::{GpuUuid, Namespace, NodeName, PodUid};
pub use inventory::{Gpu, Inventory};
pub use ledger::Ledger;
pub use node::{Compute, NodeState, Requests};
pub use reason::{Reason, Refusal};
pub use request::{Ask, Defaults, Memory, ResourceNames};
pub use rules::Rules;
pub use scaling::{Scaling, ScalingError};
pub use score::Policy;
pub use seats::Seats;
pub use typical::{Census, Typical};
pub use units::{Mib, MilliCpu, Percent};
pub use wishes::Wishes;
