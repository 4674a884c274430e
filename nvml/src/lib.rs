//! What Aliquot asks of the NVIDIA driver, behind one trait, and its implementation over NVML.
//! Fed by the library `libnvidia-ml.so.1`; must not decide what becomes of a card or a pod.

mod compute_mode;
mod driver;
mod error;
mod events;
mod facts;
mod inventory;
mod links;
mod xid;

use std::time::Duration;

pub use compute_mode::{ComputeMode, ComputeModes};
pub use driver::{DEFAULT_LIBRARY, Nvml, Options};
pub use error::NvmlError;
pub use facts::{CardFacts, CardHealth, Event, Health, Inventory, Mig, Note};
pub use xid::{APPLICATION_XIDS, IgnoredXids};

/// What is asked of the driver. Calls block; give them a blocking thread.
pub trait Driver: Send + Sync {
    /// Every card with its facts, by index. A card that fell off the bus keeps the facts that it
    /// had when it last answered; one that never answered is only in the notes.
    fn inventory(&self) -> Result<Inventory, NvmlError>;

    /// Whether each card known from an inventory (taken here if there was none yet) can be used.
    fn health(&self) -> Result<Vec<CardHealth>, NvmlError>;

    /// Waits until the driver reports something or the time is over (then the list is empty).
    /// One waiter at a time; others queue. What comes between two calls is kept by the driver.
    fn wait_events(&self, timeout: Duration) -> Result<Vec<Event>, NvmlError>;
}
