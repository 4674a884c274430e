//! NVIDIA's container toolkit around the container edits of the node agent: its real programs, on a
//! node with a simulated driver.

pub mod agent;
pub mod bundle;
pub mod node;
pub mod programs;
pub mod runtime;
