//! The answers: plain values about cards. Fed by `driver`; must not know NVML's types.

use std::collections::BTreeMap;

use aliquot_core::Mib;

use crate::mig::{Cut, Mig};

/// The driver and its cards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inventory {
    /// Such as `580.82.07`.
    pub driver_version: String,
    /// Newest CUDA version that the driver runs, (major, minor).
    pub cuda_version: Option<(u32, u32)>,
    /// The cards, by index.
    pub cards: Vec<CardFacts>,
    /// What the driver did not answer, for logs.
    pub notes: Vec<Note>,
}

/// One card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardFacts {
    /// `GPU-…`.
    pub uuid: String,
    /// NVML's index, from 0; may change at the next boot.
    pub index: u32,
    /// Number of its device node, `/dev/nvidia<minor>`.
    pub minor: Option<u32>,
    /// Such as `00000000:07:00.0`.
    pub pci_bus_id: Option<String>,
    /// What sits there, device and vendor: NVML's `pciDeviceId`, such as `0x20B010DE`.
    pub pci_device_id: Option<u32>,
    /// Marketing name, such as `NVIDIA A100-SXM4-80GB`.
    pub model: String,
    /// All memory, the driver's own part included.
    pub memory: Mib,
    /// The driver's own part; unknown to old drivers.
    pub reserved: Option<Mib>,
    /// Compute capability, (major, minor).
    pub compute_capability: Option<(u32, u32)>,
    /// The NUMA node beside it.
    pub numa: Option<u32>,
    /// Whether it can be, and is, cut into instances.
    pub mig: Mig,
    /// How it is cut.
    pub cut: Cut,
    /// How well it is joined to each other card, by uuid: 100 for each `NVLink` between the two
    /// (directly, or the lesser of both counts to switches) plus 60 same board, 50 one PCI
    /// switch, 40 several switches, 30 one host bridge, 20 one NUMA node, 10 else.
    pub links: BTreeMap<String, u32>,
}

/// A question that the driver did not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The card: its uuid where known, else `index <n>`; `None`: about the whole driver.
    pub card: Option<String>,
    /// What was asked, NVML's name of the call.
    pub call: &'static str,
    /// The answer.
    pub problem: String,
}

/// The health of a card, or of an instance of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardHealth {
    /// `GPU-…` or `MIG-…`.
    pub uuid: String,
    /// How it is.
    pub health: Health,
}

/// Whether a card can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// Yes.
    Ok,
    /// It does not answer; the driver's words.
    Lost(String),
    /// The driver asks for this before the card is used again (`nvmlDeviceGpuRecoveryAction_t`:
    /// 1 GPU reset, 2 node reboot, others drain first), and no error is known.
    RecoveryAsked(u64),
    /// It reported this critical error. Becomes [`Health::Ok`] when the driver, having asked for
    /// a reset or reboot because of it, no longer asks, or when the card was lost since and
    /// answers again; else stays until the process ends.
    Xid(u64),
}

/// Something that happened to a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A critical error.
    Xid {
        /// The card; where it came from one instance, that.
        uuid: String,
        /// NVIDIA's XID number.
        code: u64,
        /// In the list of those that say nothing about the card's health.
        ignored: bool,
    },
    /// A watched card fell off the bus; told once for each time.
    Lost {
        /// The card.
        uuid: String,
    },
}
