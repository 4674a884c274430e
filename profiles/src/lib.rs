//! Which card of a node is shared in which way, as its owner wrote it.
//!
//! Fed by: the text of the configuration, a node's labels and its cards, all as
//! values. Must not: read files, ask Kubernetes or the driver, or repair what is
//! not clear; whatever cannot be meant is a [`Fault`].

#![forbid(unsafe_code)]

pub mod choose;
pub mod config;
pub mod convert;
pub mod fault;
pub mod form;
pub mod mode;
pub mod mps;
pub mod read;
pub mod resolve;
pub mod schema;
pub mod select;
pub mod shape;
pub mod shown;

mod check;
mod layout;
mod reserve;
mod table;

pub use choose::{By, Chosen, choose};
pub use config::{Config, Profile, Reserve, Rule, Transition};
pub use fault::{Fault, Faults};
pub use mode::{Defaults, Mode};
pub use read::read;
pub use resolve::{Card, Plan, resolve};
