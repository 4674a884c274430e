//! The compute share: GPU time that a container may use of a card, in nanoseconds, charged launch
//! by launch. Pure: time and words come in as arguments, decisions go out.
//!
//! A launch is charged what its kernel took before ([`cost`]), from a small credit of its thread
//! ([`credit`]); an empty credit is filled from the container's bucket ([`bucket`]), and that
//! launch is measured. What holds at the moment is a function of the limits page ([`rule`]).
//!
//! Fed by: libvgpu.so, and by simulations in its tests. Must not: read a clock, wait, lock, or
//! know CUDA.

#![forbid(unsafe_code)]

pub mod bucket;
pub mod cost;
pub mod credit;
pub mod rule;
