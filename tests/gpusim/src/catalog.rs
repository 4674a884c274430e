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

/// Declares the models: name, PCI id, architecture, compute capability, CUDA cores, MiB in all and
/// reserved, watts when idle, most MHz, MIG, `NVLink` connections.
macro_rules! models {
    ($(
        $name:literal $device_id:literal $architecture:literal $capability:tt $cores:literal
        $memory:literal $reserved:literal $idle_power:literal $clocks:tt $mig:literal
        $nvlink:literal;
    )*) => {
        /// Every model with defaults.
        pub const MODELS: &[Model] = &[$(Model {
            name: $name,
            device_id: $device_id,
            architecture: $architecture,
            capability: $capability,
            cores: $cores,
            memory: $memory,
            reserved: $reserved,
            idle_power: $idle_power,
            clocks: $clocks,
            mig: $mig,
            nvlink: $nvlink,
        }),*];
    };
}

models! {
    "NVIDIA A100-SXM4-80GB"                        0x20B2_10DE  7  (8, 0)   6912  81_920 634  58   (1410, 1593, 1290) true  12;
    "NVIDIA A100 80GB PCIe"                        0x20B5_10DE  7  (8, 0)   6912  81_920 681  44   (1410, 1512, 1290) true   0;
    "NVIDIA H100 80GB HBM3"                        0x2330_10DE  9  (9, 0) 16_896  81_559 551  70   (1980, 2619, 1545) true  18;
    "NVIDIA H200"                                  0x2335_10DE  9  (9, 0) 16_896 143_771 616  76   (1980, 3201, 1545) true  18;
    "NVIDIA L40S"                                  0x26B9_10DE  8  (8, 9) 18_176  46_068 583  32   (2520, 9001, 1965) false  0;
    "Tesla T4"                                     0x1EB8_10DE  6  (7, 5)   2560  15_360 450   9   (1590, 5001, 1470) false  0;
    "NVIDIA A100-SXM4-40GB"                        0x20B0_10DE  7  (8, 0)   6912  40_960 571  52   (1410, 1215, 1290) true  12;
    "NVIDIA A30"                                   0x20B7_10DE  7  (8, 0)   3584  24_576 437  28   (1440, 1215, 1290) true   0;
    "NVIDIA H100 NVL"                              0x2321_10DE  9  (9, 0) 16_896  95_830 560  60   (1785, 2619, 1545) true   0;
    "NVIDIA B200"                                  0x2901_10DE 10 (10, 0) 18_944 183_359 730 140   (1965, 3996, 1545) true  18;
    "NVIDIA RTX PRO 6000 Blackwell Server Edition" 0x2BB5_10DE 10 (12, 0) 24_064  97_887 640  35 (2430, 12_481, 1965) true   0;
}

/// The model of this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Model> {
    MODELS.iter().find(|model| model.name == name)
}
