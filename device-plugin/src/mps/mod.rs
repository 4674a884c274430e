//! NVIDIA's MPS on this node: one control daemon for each unit in mode mps, kept by a process of
//! its own, so that a restart of the agent ends no client.
//!
//! Fed by: wishes that the agent leaves as files; the keeper answers by files. Must not: share a
//! daemon between units (its clients would see each other's cards).

pub mod control;
pub mod folder;
pub mod keeper;
pub mod plan;
mod processes;
pub mod standing;
mod unit;
pub mod watch;
