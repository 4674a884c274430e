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

use std::error::Error;
use std::str::FromStr;

use anyhow::{Context as _, Result};

/// What a variable of the environment says, where it is set.
pub fn number<T: FromStr>(variable: &str) -> Result<Option<T>>
where
    T::Err: Error + Send + Sync + 'static,
{
    let text = std::env::var(variable).ok();
    let number = text.map(|text| {
        let number = text.parse::<T>();
        number.with_context(|| format!("{variable}={text}: not a number"))
    });
    number.transpose()
}
