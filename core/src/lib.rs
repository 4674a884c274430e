//! Aliquot's decisions, as pure functions of values.
//!
//! Start with [`request`] (what a container asks for), then [`fit`] (whether a node can
//! take a pod, and on which devices), then [`ledger`] (what is allocated to whom).
//! `aliquot-k8s` turns Kubernetes objects into these types. This crate reads no clock, does
//! no I/O, draws no random numbers, logs nothing and knows no Kubernetes types.

#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "the names say what most parts are")]

pub mod access;
pub mod allocation;
pub mod burst;
pub mod cluster;
pub mod decide;
pub mod demand;
pub mod escape;
pub mod excerpt;
pub mod explain;
pub mod fit;
pub mod fragmentation;
pub mod hami;
pub mod id;
pub mod inventory;
pub mod ledger;
pub mod measured;
pub mod mig;
pub mod node;
pub mod policy;
pub mod preemption;
pub mod preferences;
pub mod quantity;
pub mod quota;
pub mod refusal;
pub mod replicas;
pub mod request;
pub mod request_annotation;
pub mod resize;
pub mod rules;
pub mod scale_up;
pub mod scaling;
pub mod scarcity;
pub mod score;
pub mod top;
pub mod typical;
pub mod units;
pub mod usage;

#[cfg(test)]
mod tests;

pub use allocation::{Allocation, Grant};
pub use burst::Burst;
pub use cluster::Cluster;
pub use demand::{ContainerDemand, Demand, Requests};
pub use excerpt::Excerpt;
pub use id::{GpuUuid, Namespace, NodeName, PodUid};
pub use inventory::{Gpu, Inventory};
pub use ledger::Ledger;
pub use node::NodeState;
pub use policy::{GpuPolicy, Policy};
pub use preferences::Preferences;
pub use refusal::{Reason, Refusal};
pub use replicas::Replicas;
pub use request::{Defaults, GpuRequest, Memory, ResourceNames};
pub use request_annotation::RequestAnnotation;
pub use rules::{DeviceRules, ModelRules};
pub use scaling::{Scaling, ScalingError};
pub use typical::{Census, Typical};
pub use units::{HostResources, Mib, MilliCpu, Percent};
pub use usage::Stage;
