//! The commands of `kubectl-aliquot`: their flags in [`program`], and a file or folder for each. What the
//! scheduler decides is computed by `aliquot-core`, never here.

#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "the names say what most parts are")]

pub mod access;
mod agents;
pub mod complete;
pub mod components;
pub mod config;
pub mod dashboard;
pub mod doctor;
pub mod explain;
pub mod input;
mod metrics;
pub mod output;
pub mod preflight;
pub mod program;
pub mod reference;
pub mod resize;
pub mod snapshot;
pub mod table;
#[cfg(test)]
mod tables_tests;
mod target;
pub mod top;
pub mod usage;
