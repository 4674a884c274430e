//! What Aliquot asks of the NVIDIA driver, behind one trait, and its implementation over NVML.
//! Fed by the library `libnvidia-ml.so.1`; must not decide what becomes of a card or a pod.

mod compute_mode;
mod driver;
mod error;
mod events;
mod facts;
mod inventory;
mod limits;
mod links;
mod mig;
pub mod root;
mod trouble;
mod usage;
mod xid;

use std::time::Duration;

pub use compute_mode::{ByCall, ComputeMode, ComputeModes};
pub use driver::{DEFAULT_LIBRARY, Nvml, Options};
pub use error::NvmlError;
pub use facts::{CardFacts, CardHealth, Event, Health, Inventory, Note};
pub use limits::{LimitError, MemoryLimit, MemoryLimits};
pub use mig::{Activation, Cut, Device, Instance, Mig, MigError};
pub use usage::{Bytes, Load, Process, Share, Usage};
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

    /// Forgets the errors of a card with those of its instances, or of one instance, by its
    /// owner's word. What the driver asks for stays. A driver that remembers none has none to
    /// forget.
    fn clear(&self, _uuid: &str) {}

    /// The clients of MPS on a card or an instance: process ids, as the driver sees them from
    /// here, and bytes. A driver that keeps no such list has none.
    fn mps_clients(&self, _uuid: &str) -> Result<Vec<(u32, u64)>, NvmlError> {
        Ok(Vec::new())
    }

    /// How a card is cut now. Like every call about MIG: a driver that has none says so.
    fn cut(&self, card: &str) -> Result<Cut, MigError> {
        Err(MigError::none(card))
    }

    /// Switches MIG on a card. Every instance must be gone before it is switched off.
    fn set_mig(&self, card: &str, _on: bool) -> Result<Activation, MigError> {
        Err(MigError::none(card))
    }

    /// Makes an instance of the profile of this name at this memory slice: a GPU instance and one
    /// device that has all of it, or neither.
    fn create_instance(
        &self,
        card: &str,
        _profile: &str,
        _start: u8,
    ) -> Result<Instance, MigError> {
        Err(MigError::none(card))
    }

    /// Ends a GPU instance, by the driver's id, with the devices in it. Fails while a process is
    /// on one of them.
    fn destroy_instance(&self, card: &str, _id: u32) -> Result<(), MigError> {
        Err(MigError::none(card))
    }
}
