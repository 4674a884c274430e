//! Which GPU of a node is shared in which way, as its administrator configured it: reads profiles,
//! selects a node's profile, and resolves it to a mode for each GPU. Pure: no files, no Kubernetes, no
//! driver. Anything ambiguous is a [`ProfileError`].

#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "the names say what most parts are")]

pub mod config;
pub mod config_schema;
pub mod convert;
pub mod effective;
pub mod error;
pub mod gpu_selector;
pub mod mode;
pub mod mps;
pub mod profile_selection;
pub mod read;
pub mod resolve;
pub mod schema;
pub mod text_format;

mod validate;

pub use config::{Config, Profile, Reservation, Rule, Transition};
pub use error::{ProfileError, ProfileErrors};
pub use gpu_selector::PhysicalGpu;
pub use mode::{Defaults, Mode};
pub use profile_selection::{ProfileSource, SelectedProfile, select_profile};
pub use read::read;
pub use resolve::{GpuPlan, resolve};
