//! What can fail for the whole driver. Trouble with one card is a note or a health, never this.

use std::path::PathBuf;

use nvml_wrapper::error::NvmlError as Cause;

use crate::root::FOLDERS;

/// A failed step; the cause is NVML's own.
#[derive(Debug, thiserror::Error)]
pub enum NvmlError {
    /// The library is not there, or the driver is not loaded.
    #[error("cannot load and initialise the driver library {library}: {source}")]
    Open {
        /// The library's path or name.
        library: String,
        /// The reason.
        source: Cause,
    },
    /// The driver's root has no such library.
    #[error("no {library} below the driver's root {}; looked in: {}", root.display(), FOLDERS.join(", "))]
    NotBelow {
        /// Its name.
        library: String,
        /// The root, as it is seen here.
        root: PathBuf,
    },
    /// The driver's version cannot be read.
    #[error("cannot read the driver's version: {0}")]
    DriverVersion(#[source] Cause),
    /// The cards cannot be counted.
    #[error("cannot count the GPUs: {0}")]
    Count(#[source] Cause),
    /// No event set can be made.
    #[error("cannot make an event set: {0}")]
    EventSet(#[source] Cause),
    /// A card cannot be registered for events.
    #[error("cannot register {uuid} for events: {source}")]
    Register {
        /// The card.
        uuid: String,
        /// The reason.
        source: Cause,
    },
    /// Who is on a card cannot be read.
    #[error("cannot list the processes on {uuid}: {source}")]
    Processes {
        /// The card.
        uuid: String,
        /// The reason.
        source: Cause,
    },
    /// What a card does cannot be read.
    #[error("cannot read the {what} of {uuid}: {source}")]
    Usage {
        /// "load", "memory" or "processes' shares".
        what: &'static str,
        /// The card or the instance.
        uuid: String,
        /// The reason.
        source: Cause,
    },
    /// A card's compute mode cannot be read or set.
    #[error("cannot {step} the compute mode of {uuid}: {source}")]
    ComputeMode {
        /// "read" or "set".
        step: &'static str,
        /// The card.
        uuid: String,
        /// The reason.
        source: Cause,
    },
    /// The wait for events failed.
    #[error("cannot wait for events: {0}")]
    Wait(#[source] Cause),
}
