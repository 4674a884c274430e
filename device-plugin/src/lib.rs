//! The node agent: what GPUs a node has, which replicas the kubelet may hand out,
//! and what each container is given.
//!
//! Start with [`allocation::validation`] (may a pod have what its annotation says) and
//! [`allocation::start`] (what happens when the kubelet is about to start a container).
//! The agent never chooses a GPU: the scheduler did.

#![allow(missing_docs, reason = "the names say what most parts are")]

pub mod admin;
pub mod agent;
pub mod allocation;
mod clock;
pub mod container_edits;
pub mod driver_wait;
pub mod files;
pub mod gpus;
pub mod health;
pub mod host_device;
pub mod kubelet;
pub mod layout;
pub mod metrics;
pub mod modes;
pub mod node_view;
pub mod paths;
pub mod pods;
pub mod publish;
pub mod runtime;
pub mod selinux;
pub mod settings;
mod task_supervisor;
mod tmpfs;

#[cfg(test)]
mod testing;
