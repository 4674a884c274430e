//! The compute share: GPU time that a container may use on a device, in nanoseconds, charged launch
//! by launch. Pure: time and words come in as arguments, decisions go out. Nothing here reads a
//! clock, waits or locks.
//!
//! A launch is charged what its kernel took before ([`cost`]), from a small credit of its thread
//! ([`credit`]). An empty credit is refilled from the container's bucket ([`bucket`]), and that
//! launch is measured. The current limit is a function of the limits page ([`rule`]). What is not
//! measured yet is estimated from other sizes of the function ([`scale`]).

#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "the names say what most parts are")]

pub mod bucket;
pub mod cost;
pub mod credit;
pub mod queue;
pub mod rule;
pub mod scale;
