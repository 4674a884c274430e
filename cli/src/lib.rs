//! `kubectl-aliquot`: what can be asked of Aliquot from outside.
//!
//! `simulate` drives policies over a trace of pods: [`trace`] reads it,
//! [`workload`] orders and inflates it, [`experiment`] offers it pod by pod to a
//! [`rig::Placer`], [`report`] and [`plot`] show what came of it.
//! `explain` and `top` ask a living cluster ([`live`], [`measured`]) and show it ([`table`]).
//! `suggest` reads what containers were seen to use ([`suggest`]).
//! `doctor` says what is wrong and what to do ([`doctor`]), and what a move changes ([`migrate`]).
//! `config` validates, converts and shows profiles ([`config`]).
//! Fed by: the command line.
//! Must not: decide anything that the scheduler decides; that is asked of core.

#![forbid(unsafe_code)]

pub mod complete;
pub mod config;
pub mod doctor;
pub mod experiment;
pub mod hami;
pub mod live;
pub mod measured;
pub mod migrate;
pub mod ours;
pub mod output;
pub mod plan;
pub mod plot;
pub mod program;
pub mod published;
pub mod reference;
pub mod report;
pub mod rig;
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
