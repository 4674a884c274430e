//! What the node reports to the cluster: inventory annotation, capacity, labels, conditions.

pub mod capacity;
pub mod cleanup;
pub mod conditions;
pub mod device_metrics;
pub mod drain;
pub mod labels;
pub mod node;
pub mod objects;
pub mod removed_resources;
