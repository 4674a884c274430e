//! Two replicas under load, killed at every named place of the scheduler.
//!
//! Start with [`run`]; [`places`] says where, [`replicas`] who, [`observer`] what
//! must hold meanwhile and [`rest`] what must hold in the end.

#![forbid(unsafe_code)]

pub mod load;
pub mod observer;
pub mod places;
pub mod provoke;
pub mod replicas;
pub mod rest;
pub mod run;
