//! The simulated machine as shared memory: cards and their facts (`state`), and what processes
//! hold and run on them (`shared`). Fed by the libraries and the command of `tests/gpusim`; must
//! export nothing to C and know neither NVML nor CUDA.

mod locks;
mod member;
pub mod model;
pub mod pids;
pub mod shared;
pub mod state;
mod watch;

pub use member::{Full, Member};
pub use watch::{Holder, Watcher};
