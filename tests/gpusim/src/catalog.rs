//! What is known of real cards: the defaults for each model a machine file may name.
//! Fed by data sheets and nvidia-smi listings; must not hold anything about one card.

/// Facts that all cards of a model share.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// NVML's name.
    pub name: &'static str,
    /// PCI device and vendor id.
    pub device_id: u32,
    /// PCI subsystem and vendor id.
    pub subsystem_id: u32,
    /// `nvmlDeviceArchitecture_t`.
    pub architecture: u32,
    /// Compute capability.
    pub capability: (u32, u32),
    /// CUDA cores.
    pub cores: u32,
    /// MiB in all.
    pub memory: u64,
    /// MiB that the driver keeps.
    pub reserved: u64,
    /// MiB of BAR1.
    pub bar1: u64,
    /// Watts.
    pub power: u32,
    /// Watts when idle.
    pub idle_power: u32,
    /// Most MHz: graphics and SM, memory, video.
    pub clocks: (u32, u32, u32),
    /// Can be cut by MIG.
    pub mig: bool,
    /// `NVLink` connections, all to switches, and their generation; 0 = none.
    pub nvlink: (usize, u32),
    /// PCI Express generation.
    pub pcie: u32,
}

/// `NVML_BRAND_NVIDIA`: what recent drivers answer for every data-centre card.
pub const BRAND_NVIDIA: u32 = 14;

/// Every model with defaults.
pub const MODELS: [Model; 6] = [
    Model {
        name: "NVIDIA A100-SXM4-80GB",
        device_id: 0x20B2_10DE,
        subsystem_id: 0x147F_10DE,
        architecture: 7,
        capability: (8, 0),
        cores: 6912,
        memory: 81_920,
        reserved: 634,
        bar1: 131_072,
        power: 400,
        idle_power: 58,
        clocks: (1410, 1593, 1290),
        mig: true,
        nvlink: (12, 3),
        pcie: 4,
    },
    Model {
        name: "NVIDIA A100 80GB PCIe",
        device_id: 0x20B5_10DE,
        subsystem_id: 0x1533_10DE,
        architecture: 7,
        capability: (8, 0),
        cores: 6912,
        memory: 81_920,
        reserved: 681,
        bar1: 131_072,
        power: 300,
        idle_power: 44,
        clocks: (1410, 1512, 1290),
        mig: true,
        nvlink: (0, 0),
        pcie: 4,
    },
    Model {
        name: "NVIDIA H100 80GB HBM3",
        device_id: 0x2330_10DE,
        subsystem_id: 0x16C1_10DE,
        architecture: 9,
        capability: (9, 0),
        cores: 16_896,
        memory: 81_559,
        reserved: 551,
        bar1: 131_072,
        power: 700,
        idle_power: 70,
        clocks: (1980, 2619, 1545),
        mig: true,
        nvlink: (18, 4),
        pcie: 5,
    },
    Model {
        name: "NVIDIA H200",
        device_id: 0x2335_10DE,
        subsystem_id: 0x18BE_10DE,
        architecture: 9,
        capability: (9, 0),
        cores: 16_896,
        memory: 143_771,
        reserved: 616,
        bar1: 262_144,
        power: 700,
        idle_power: 76,
        clocks: (1980, 3201, 1545),
        mig: true,
        nvlink: (18, 4),
        pcie: 5,
    },
    Model {
        name: "NVIDIA L40S",
        device_id: 0x26B9_10DE,
        subsystem_id: 0x1851_10DE,
        architecture: 8,
        capability: (8, 9),
        cores: 18_176,
        memory: 46_068,
        reserved: 583,
        bar1: 65_536,
        power: 350,
        idle_power: 32,
        clocks: (2520, 9001, 1965),
        mig: false,
        nvlink: (0, 0),
        pcie: 4,
    },
    Model {
        name: "Tesla T4",
        device_id: 0x1EB8_10DE,
        subsystem_id: 0x12A2_10DE,
        architecture: 6,
        capability: (7, 5),
        cores: 2560,
        memory: 15_360,
        reserved: 450,
        bar1: 256,
        power: 70,
        idle_power: 9,
        clocks: (1590, 5001, 1470),
        mig: false,
        nvlink: (0, 0),
        pcie: 3,
    },
];

/// The model of this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Model> {
    MODELS.iter().find(|model| model.name == name)
}
