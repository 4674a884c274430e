//! The commands of `kubectl-aliquot`.
//!
//! `simulate` runs policies over a trace of pods: [`trace`] reads it, [`workload`] orders and scales
//! it, [`experiment`] offers it pod by pod to a [`placer::Placer`], [`report`] and [`plot`] show the
//! results. `explain` and `top` query a cluster ([`live`], [`mps_usage`]) and print it ([`table`]).
//! `doctor` reports problems ([`doctor`]) and what a migration changes ([`migrate`]). What the
//! scheduler decides is computed by `aliquot-core`, never here.

#![forbid(unsafe_code)]

pub mod aliquot;
pub mod complete;
pub mod config;
pub mod doctor;
pub mod experiment;
pub mod hami;
pub mod live;
pub mod migrate;
pub mod mps_usage;
pub mod output;
pub mod placer;
pub mod plan;
pub mod plot;
pub mod program;
pub mod published;
pub mod reference;
pub mod report;
mod sample;
pub mod simulate;
pub mod suggest;
pub mod table;
pub mod top;
pub mod trace;
pub mod typical;
pub mod what_if;
pub mod workload;

#[cfg(test)]
mod tests;
