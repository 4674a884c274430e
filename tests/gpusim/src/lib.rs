//! A simulated NVIDIA driver: as a cdylib it is `libnvidia-ml.so.1` over a state file that many
//! processes share; as an rlib it lets tests make and change that file. The product loads it by
//! path like the real one and must never link this crate.

pub mod catalog;
mod cuda_processes;
pub mod edit;
mod exports;
mod ffi;
mod handles;
mod holders;
mod library;
mod machine;
mod machine_file;
mod mig;
pub mod mps;
pub mod place;
mod show;
mod visible_devices;

pub use aliquot_gpusim_model::device_nodes::proc_folder;
pub use aliquot_gpusim_model::{ProcessUsage, model, state};
pub use holders::Holder;
pub use library::{STATE_FILE, STATE_VARIABLE};
pub use machine::{MachineError, PROFILE_VARIABLE, SimulatedMachine};
