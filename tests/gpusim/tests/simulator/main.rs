//! The simulated driver seen from outside: by clients that were not written here, by raw calls,
//! by the product's own driver library, and by many processes at once.
#![allow(clippy::unwrap_used, reason = "the helpers of tests fail the test")]

mod answers;
mod calls;
mod cards_cut;
mod client;
mod clients;
mod common;
mod cut_driver;
mod cutting;
mod driver;
mod limits;
mod machine_files;
mod sharing;
mod uncut;
