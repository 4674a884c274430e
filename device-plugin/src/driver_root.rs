//! Where the driver's files are: on the host itself, or below a root of their own, such as that of a
//! driver container. CDI specs name only the host's paths: the container runtime knows no others.

use std::path::PathBuf;

/// A driver's root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverRoot {
    /// Its path in this container.
    pub here: PathBuf,
    /// Its path on the host.
    pub host: PathBuf,
}
