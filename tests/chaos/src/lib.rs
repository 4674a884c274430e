//! Two replicas under load, killed at every named place of the scheduler.
//!
//! [`handover`]: the leader falls in the middle of a preemption.
//! For the rest start with [`run`]; [`places`] says where, [`replicas`] who, [`observer`] what
//! must hold meanwhile and [`rest`] what must hold in the end.

#![forbid(unsafe_code)]

pub mod handover;
pub mod load;
pub mod observer;
pub mod places;
pub mod provoke;
pub mod replicas;
pub mod rest;
pub mod run;
