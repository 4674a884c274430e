//! Plain values about GPUs, free of NVML's types.

use std::collections::BTreeMap;
use std::fmt;

use aliquot_core::Mib;
use serde::{Deserialize, Serialize};

use crate::mig::{MigLayout, MigMode};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverInventory {
    /// Such as `580.82.07`.
    pub driver_version: String,
    /// The GPUs, ordered by index.
    pub gpus: Vec<GpuFacts>,
    /// Calls that failed, for logs.
    pub notes: Vec<Note>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuFacts {
    /// `GPU-…`.
    pub uuid: String,
    /// NVML's index, from 0; may change at the next boot.
    pub index: u32,
    /// Minor number of its device node, `/dev/nvidia<minor>`.
    pub minor: Option<u32>,
    /// Such as `00000000:07:00.0`.
    pub pci_bus_id: Option<String>,
    /// PCI device and vendor, NVML's `pciDeviceId`, such as `0x20B010DE`.
    pub pci_device_id: Option<u32>,
    /// Marketing name, such as `NVIDIA A100-SXM4-80GB`.
    pub model: String,
    /// Total memory, including what the driver reserves.
    pub memory: Mib,
    /// Memory that the driver reserves; unknown to old drivers.
    pub reserved: Option<Mib>,
    /// Compute capability, (major, minor).
    pub compute_capability: Option<(u32, u32)>,
    /// The nearest NUMA node.
    pub numa: Option<u32>,
    /// Whether the GPU supports MIG and has it enabled.
    pub mig: MigMode,
    pub layout: MigLayout,
    /// Link score to each other GPU, by uuid: 100 for each `NVLink` between the two (direct, or the
    /// lesser of both counts to switches), plus 60 same board, 50 one PCI switch, 40 several
    /// switches, 30 one host bridge, 20 one NUMA node, 10 otherwise.
    pub links: BTreeMap<String, u32>,
}

impl GpuFacts {
    /// The memory that programs can allocate: without what the driver reserves, where it reports that.
    #[must_use]
    pub fn usable(&self) -> Mib {
        let reserved = self.reserved.unwrap_or(Mib(0));
        Mib(self.memory.0.saturating_sub(reserved.0))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The GPU's uuid where known, otherwise `index <n>`.
    pub gpu: String,
    /// NVML's name of the call.
    pub call: &'static str,
    pub problem: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceHealth {
    /// `GPU-…` or `MIG-…`.
    pub uuid: String,
    pub health: DriverHealth,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriverHealth {
    Ok,
    /// The driver says so, or no call about it has succeeded for ten seconds; the driver's error.
    Lost(String),
    /// The driver requests this recovery before the GPU is used again (`nvmlDeviceGpuRecoveryAction_t`:
    /// 1 GPU reset, 2 node reboot, others drain first), and no error is known.
    RecoveryRequested(u64),
    /// It reported this critical error. Becomes [`DriverHealth::Ok`] when the driver, having requested a
    /// reset or reboot, no longer does, or when the GPU was lost since and answers again; otherwise
    /// it stays until it is cleared.
    Xid(u64),
    /// It is part of an `NVLink` fabric and not registered with it. Becomes [`DriverHealth::Ok`] when
    /// the registration is complete.
    FabricNotReady(UnfinishedRegistration),
}

/// A critical error that is not over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedError {
    pub gpu: String,
    /// The GPU again, or the MIG instance that the error came from.
    pub uuid: String,
    /// NVIDIA's XID number.
    pub code: u64,
    /// The driver has requested a reset or reboot since.
    pub recovery_requested: bool,
    /// The GPU has been off the bus since: it was reset, or removed and put back.
    pub was_lost: bool,
}

/// The registration of a GPU with its `NVLink` fabric, while it is not complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnfinishedRegistration {
    NotStarted,
    InProgress,
    /// It ended with this error of NVML (`nvmlReturn_t`).
    Failed(u32),
}

impl fmt::Display for UnfinishedRegistration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotStarted => f.write_str("not started"),
            Self::InProgress => f.write_str("in progress"),
            Self::Failed(code) => write!(f, "failed with NVML error {code}"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuEvent {
    Xid {
        /// The GPU, or the MIG instance that it came from.
        uuid: String,
        code: u64,
        /// The XID is ignored: it does not make the GPU unhealthy.
        ignored: bool,
    },
    /// A watched GPU fell off the bus; reported once each time.
    Lost { uuid: String },
    /// A GPU refuses to report critical errors: only its health is read. Reported once for each
    /// subscription.
    Unwatched { uuid: String, reason: String },
}
