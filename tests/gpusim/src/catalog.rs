//! Facts about real GPUs, from data sheets and nvidia-smi listings: the defaults of each model that
//! a machine file may name.

/// Facts that all GPUs of a model share.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// NVML's name.
    pub name: &'static str,
    /// PCI device and vendor id.
    pub device_id: u32,
    /// `nvmlDeviceArchitecture_t`.
    pub architecture: u32,
    /// Compute capability.
    pub capability: (u32, u32),
    /// CUDA cores.
    pub cores: u32,
    /// MiB in all.
    pub memory: u64,
    /// MiB that the driver reserves.
    pub reserved: u64,
    /// Watts when idle.
    pub idle_power: u32,
    /// Most MHz: graphics and SM, memory, video.
    pub clocks: (u32, u32, u32),
    /// Supports MIG.
    pub mig: bool,
    /// `NVLink` connections, all to switches.
    pub nvlink: usize,
}

/// Every model with defaults.
pub const MODELS: [Model; 11] = [
    Model {
        name: "NVIDIA A100-SXM4-80GB",
        device_id: 0x20B2_10DE,
        architecture: 7,
        capability: (8, 0),
        cores: 6912,
        memory: 81_920,
        reserved: 634,
        idle_power: 58,
        clocks: (1410, 1593, 1290),
        mig: true,
        nvlink: 12,
    },
    Model {
        name: "NVIDIA A100 80GB PCIe",
        device_id: 0x20B5_10DE,
        architecture: 7,
        capability: (8, 0),
        cores: 6912,
        memory: 81_920,
        reserved: 681,
        idle_power: 44,
        clocks: (1410, 1512, 1290),
        mig: true,
        nvlink: 0,
    },
    Model {
        name: "NVIDIA H100 80GB HBM3",
        device_id: 0x2330_10DE,
        architecture: 9,
        capability: (9, 0),
        cores: 16_896,
        memory: 81_559,
        reserved: 551,
        idle_power: 70,
        clocks: (1980, 2619, 1545),
        mig: true,
        nvlink: 18,
    },
    Model {
        name: "NVIDIA H200",
        device_id: 0x2335_10DE,
        architecture: 9,
        capability: (9, 0),
        cores: 16_896,
        memory: 143_771,
        reserved: 616,
        idle_power: 76,
        clocks: (1980, 3201, 1545),
        mig: true,
        nvlink: 18,
    },
    Model {
        name: "NVIDIA L40S",
        device_id: 0x26B9_10DE,
        architecture: 8,
        capability: (8, 9),
        cores: 18_176,
        memory: 46_068,
        reserved: 583,
        idle_power: 32,
        clocks: (2520, 9001, 1965),
        mig: false,
        nvlink: 0,
    },
    Model {
        name: "Tesla T4",
        device_id: 0x1EB8_10DE,
        architecture: 6,
        capability: (7, 5),
        cores: 2560,
        memory: 15_360,
        reserved: 450,
        idle_power: 9,
        clocks: (1590, 5001, 1470),
        mig: false,
        nvlink: 0,
    },
    Model {
        name: "NVIDIA A100-SXM4-40GB",
        device_id: 0x20B0_10DE,
        architecture: 7,
        capability: (8, 0),
        cores: 6912,
        memory: 40_960,
        reserved: 571,
        idle_power: 52,
        clocks: (1410, 1215, 1290),
        mig: true,
        nvlink: 12,
    },
    Model {
        name: "NVIDIA A30",
        device_id: 0x20B7_10DE,
        architecture: 7,
        capability: (8, 0),
        cores: 3584,
        memory: 24_576,
        reserved: 437,
        idle_power: 28,
        clocks: (1440, 1215, 1290),
        mig: true,
        nvlink: 0,
    },
    Model {
        name: "NVIDIA H100 NVL",
        device_id: 0x2321_10DE,
        architecture: 9,
        capability: (9, 0),
        cores: 16_896,
        memory: 95_830,
        reserved: 560,
        idle_power: 60,
        clocks: (1785, 2619, 1545),
        mig: true,
        nvlink: 0,
    },
    Model {
        name: "NVIDIA B200",
        device_id: 0x2901_10DE,
        architecture: 10,
        capability: (10, 0),
        cores: 18_944,
        memory: 183_359,
        reserved: 730,
        idle_power: 140,
        clocks: (1965, 3996, 1545),
        mig: true,
        nvlink: 18,
    },
    Model {
        name: "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        device_id: 0x2BB5_10DE,
        architecture: 10,
        capability: (12, 0),
        cores: 24_064,
        memory: 97_887,
        reserved: 640,
        idle_power: 35,
        clocks: (2430, 12_481, 1965),
        mig: true,
        nvlink: 0,
    },
];

/// The model of this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Model> {
    MODELS.iter().find(|model| model.name == name)
}
