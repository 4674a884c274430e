//! `kubectl-aliquot`: what can be asked of Aliquot from outside.
//!
//! `simulate` drives policies over a trace of pods: [`trace`] reads it,
//! [`workload`] orders and inflates it, [`experiment`] offers it pod by pod to a
//! [`rig::Placer`], [`report`] and [`plot`] show what came of it.
//! `explain` and `top` ask a living cluster ([`live`], [`measured`]) and show it ([`table`]).
//! `suggest` reads what containers were seen to use ([`suggest`]).
//! `config` validates, converts and shows profiles ([`config`]).
//! Fed by: the command line.
//! Must not: decide anything that the scheduler decides; that is asked of core.

#![forbid(unsafe_code)]

pub mod config;
pub mod experiment;
pub mod hami;
pub mod live;
pub mod measured;
pub mod ours;
pub mod plan;
pub mod plot;
pub mod published;
pub mod report;
pub mod rig;
mod sample;
pub mod simulate;
pub mod suggest;
pub mod table;
pub mod trace;
pub mod typical;
pub mod what_if;
pub mod workload;

#[cfg(test)]
mod tests;
