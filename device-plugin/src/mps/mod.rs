//! NVIDIA's MPS on this node: one control daemon for each device in mode mps, supervised by a
//! process in a pod of its own, so that a rollout of the agent ends no client. Agent and supervisor
//! talk through files.
//!
//! Devices never share a daemon: its clients would see each other's GPUs.

pub mod control;
mod daemon;
pub mod directory;
pub mod health;
pub mod monitor;
pub mod plan;
mod processes;
pub mod program;
mod shm;
pub mod supervisor;
