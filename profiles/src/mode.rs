//! The sharing modes and their settings. YAML is validated by [`read`](crate::read()) only.

pub use aliquot_core::Scaling;
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::Value;

/// Maximum number of shares of one GPU.
pub const MAX_REPLICAS: u64 = 1000;
/// Maximum number of clients of one MPS daemon, from compute capability 7.0 on.
pub const MAX_MPS_CLIENTS: u64 = 48;
/// The same on older GPUs.
pub const MAX_MPS_CLIENTS_BEFORE_VOLTA: u32 = 16;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "mode", rename_all = "lowercase")]
pub enum Mode {
    /// Shares limited by libvgpu.so.
    Vgpu(Vgpu),
    /// One container at a time.
    Exclusive(Exclusive),
    /// Time-slicing, without limits.
    Timeslice(Timeslice),
    /// Shares limited by NVIDIA's MPS.
    Mps(Mps),
    /// Partitioned into MIG instances.
    Mig(Mig),
    /// Not advertised, and left unchanged.
    Unmanaged,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "mode", rename_all = "lowercase")]
pub enum InstanceSharing {
    /// Shares limited by libvgpu.so.
    Vgpu(Vgpu),
    /// Time-slicing.
    Timeslice(Timeslice),
    /// Shares limited by MPS.
    Mps(Mps),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Vgpu {
    /// Number of shares; by default the node's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub split: Option<u32>,
    /// Factor of the allocatable memory; by default the node's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_scaling: Option<Scaling>,
    /// Containers also get the driver's graphics libraries, whose use is not limited.
    #[serde(skip_serializing_if = "is_false")]
    pub graphics: bool,
    /// The same for the video libraries.
    #[serde(skip_serializing_if = "is_false")]
    pub video: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exclusive {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rename: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeslice {
    /// Number of containers that take turns.
    pub replicas: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rename: Option<String>,
    /// At most one share for each container.
    #[serde(default)]
    pub strict: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mps {
    /// Number of containers at once.
    pub replicas: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rename: Option<String>,
    /// At most one share for each container, NVIDIA's default for MPS.
    #[serde(default = "yes")]
    pub strict: bool,
    /// Memory of containers that request none.
    #[serde(default)]
    pub memory: DefaultShare,
    /// Compute of containers that request none.
    #[serde(default)]
    pub threads: DefaultShare,
    /// The GPU's compute mode.
    #[serde(default)]
    pub compute_mode: ComputeMode,
}

/// The share of a container that requests none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DefaultShare {
    /// One of `replicas` equal shares.
    #[default]
    Even,
    /// Everything.
    Full,
}

/// Which processes may open the GPU without the MPS daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ComputeMode {
    /// None.
    #[default]
    ExclusiveProcess,
    /// All.
    Default,
}

/// Settings of mig: a layout, or dynamic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Mig {
    /// The instances of each GPU.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub layout: Vec<LayoutEntry>,
    /// Dynamic MIG: instances are created when needed.
    #[serde(skip_serializing_if = "is_false")]
    pub dynamic: bool,
    /// The profiles that may be created; empty: all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
    /// The resource names of instances.
    pub strategy: Strategy,
}

/// Resource names of instances, by NVIDIA's names of the strategies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Strategy {
    /// One resource for each profile.
    #[default]
    Mixed,
    /// The resource of whole GPUs for all.
    Single,
    /// Not advertised.
    None,
}

/// Instances of one profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayoutEntry {
    /// The driver's name of the profile.
    pub profile: String,
    /// The number on each GPU.
    #[serde(default = "one")]
    pub count: u32,
    /// How each is shared; by default one container gets it.
    #[serde(
        default,
        deserialize_with = "name_or_settings",
        skip_serializing_if = "Option::is_none"
    )]
    pub on: Option<InstanceSharing>,
}

/// The node's settings where a profile has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Defaults {
    /// `deviceSplitCount`.
    pub split: u32,
    /// `deviceMemoryScaling`.
    pub memory_scaling: Scaling,
}

impl Timeslice {
    /// So many containers, with default settings.
    pub const fn new(replicas: u32) -> Self {
        Self {
            replicas,
            rename: None,
            strict: false,
        }
    }
}

impl Mps {
    /// So many containers, with default settings.
    pub const fn new(replicas: u32) -> Self {
        Self {
            replicas,
            rename: None,
            strict: true,
            memory: DefaultShare::Even,
            threads: DefaultShare::Even,
            compute_mode: ComputeMode::ExclusiveProcess,
        }
    }
}

impl Mode {
    /// Its name in profiles.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Vgpu(_) => "vgpu",
            Self::Exclusive(_) => "exclusive",
            Self::Timeslice(_) => "timeslice",
            Self::Mps(_) => "mps",
            Self::Mig(_) => "mig",
            Self::Unmanaged => "unmanaged",
        }
    }

    /// The mode with the node's defaults wherever it sets none.
    pub fn with_defaults(&self, defaults: &Defaults) -> Self {
        let fill = |vgpu: &Vgpu| Vgpu {
            split: vgpu.split.or(Some(defaults.split)),
            memory_scaling: vgpu.memory_scaling.or(Some(defaults.memory_scaling)),
            ..*vgpu
        };
        let mut mode = self.clone();
        match &mut mode {
            Self::Vgpu(vgpu) => *vgpu = fill(vgpu),
            Self::Mig(mig) => {
                for slice in &mut mig.layout {
                    if let Some(InstanceSharing::Vgpu(vgpu)) = &mut slice.on {
                        *vgpu = fill(vgpu);
                    }
                }
            }
            Self::Exclusive(_) | Self::Timeslice(_) | Self::Mps(_) | Self::Unmanaged => {}
        }
        mode
    }

    /// The resource that pods request; `default` if the mode does not rename it. `None` for MIG
    /// instances, which have names of their own, and for unmanaged GPUs.
    pub fn resource<'a>(&'a self, default: &'a str) -> Option<&'a str> {
        let rename = match self {
            Self::Vgpu(_) => &None,
            Self::Exclusive(exclusive) => &exclusive.rename,
            Self::Timeslice(timeslice) => &timeslice.rename,
            Self::Mps(mps) => &mps.rename,
            Self::Mig(_) | Self::Unmanaged => return None,
        };
        Some(rename.as_deref().unwrap_or(default))
    }
}

/// Deserializes a mode's name alone, or a mapping with its settings.
pub(crate) fn name_or_settings<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: serde::de::DeserializeOwned,
{
    let value = match Value::deserialize(deserializer)? {
        Value::String(name) => serde_json::json!({ "mode": name }),
        full => full,
    };
    serde_json::from_value(value)
        .map(Some)
        .map_err(D::Error::custom)
}

fn yes() -> bool {
    true
}

fn one() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
pub(crate) fn is_false(flag: &bool) -> bool {
    !flag
}
