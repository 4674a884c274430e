//! Two replicas under load, killed at every fail-point of the scheduler.
//!
//! [`gangs`] kills the leader while gangs are bound. The rest starts with [`run`]:
//! [`places`] lists the fail-points, [`replicas`] the processes, [`observer`] checks what must hold
//! all the time and [`rest`] what must hold in the end.

#![forbid(unsafe_code)]

pub mod gangs;
pub mod load;
pub mod observer;
pub mod places;
pub mod provoke;
pub mod replicas;
pub mod rest;
pub mod run;
