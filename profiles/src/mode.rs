//! The ways to share a card, with their settings.
//!
//! Fed by: [`read`](crate::read()) and the conversions. Must not: be built from YAML
//! past [`read`](crate::read()), which knows what is accepted.

pub use aliquot_core::Scaling;
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::Value;

/// Most shares of one card.
pub const MOST_SEATS: u64 = 1000;
/// Most clients of one MPS daemon, from compute capability 7.0 on.
pub const MOST_CLIENTS: u64 = 48;
/// The same on older cards.
pub const MOST_CLIENTS_BEFORE_VOLTA: u32 = 16;

/// How a card is shared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "mode", rename_all = "lowercase")]
pub enum Mode {
    /// Shares held by libvgpu.so.
    Vgpu(Vgpu),
    /// One container at a time.
    Exclusive(Exclusive),
    /// Shares in turns, without limits.
    Timeslice(Timeslice),
    /// Shares through NVIDIA's MPS.
    Mps(Mps),
    /// Cut into instances.
    Mig(Mig),
    /// Left to others: not offered, not touched.
    Unmanaged,
}

/// How a MIG instance is shared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "mode", rename_all = "lowercase")]
pub enum On {
    /// Shares held by libvgpu.so.
    Vgpu(Vgpu),
    /// Shares in turns.
    Timeslice(Timeslice),
    /// Shares through MPS.
    Mps(Mps),
}

/// Settings of vgpu.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Vgpu {
    /// Shares at once; without it the node's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub split: Option<u32>,
    /// Memory promised; without it the node's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_scaling: Option<Scaling>,
    /// Containers also get what of the driver draws, which nothing limits.
    #[serde(skip_serializing_if = "is_false")]
    pub graphics: bool,
    /// The same of what encodes and decodes video.
    #[serde(skip_serializing_if = "is_false")]
    pub video: bool,
}

/// Settings of exclusive.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exclusive {
    /// The resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rename: Option<String>,
}

/// Settings of timeslice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Timeslice {
    /// Containers that take turns.
    pub replicas: u32,
    /// The resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rename: Option<String>,
    /// One share for each container.
    #[serde(default)]
    pub strict: bool,
    /// How long a turn is.
    #[serde(default)]
    pub slice_length: SliceLength,
}

/// Length of a turn, in the driver's words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SliceLength {
    /// As the driver has it.
    #[default]
    Default,
    /// Short.
    Short,
    /// Medium.
    Medium,
    /// Long.
    Long,
}

/// Settings of mps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mps {
    /// Containers at once.
    pub replicas: u32,
    /// The resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rename: Option<String>,
    /// One share for each container: NVIDIA's default for MPS.
    #[serde(default = "yes")]
    pub strict: bool,
    /// Memory of those who ask for none.
    #[serde(default)]
    pub memory: Part,
    /// Compute of those who ask for none.
    #[serde(default)]
    pub threads: Part,
    /// The card's compute mode.
    #[serde(default)]
    pub compute_mode: ComputeMode,
}

/// What those get who ask for nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// One of `replicas` equal parts.
    #[default]
    Even,
    /// Everything.
    Full,
}

/// Who may open the card past the daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ComputeMode {
    /// Nobody.
    #[default]
    ExclusiveProcess,
    /// Everybody.
    Default,
}

/// Settings of mig: a layout, or dynamic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Mig {
    /// The instances of each card.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub layout: Vec<Slice>,
    /// Instances are made when needed.
    #[serde(skip_serializing_if = "is_false")]
    pub dynamic: bool,
    /// The profiles that may be made; empty: all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
    /// Under which names.
    pub strategy: Strategy,
}

/// Names of instances, as NVIDIA's plugin calls the ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Strategy {
    /// Each profile its own resource.
    #[default]
    Mixed,
    /// All as whole cards.
    Single,
    /// Not offered.
    None,
}

/// Instances of one profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slice {
    /// As the driver names it.
    pub profile: String,
    /// So many on each card.
    #[serde(default = "one")]
    pub count: u32,
    /// How each is shared; without it one container has it.
    #[serde(
        default,
        deserialize_with = "bare_or_full",
        skip_serializing_if = "Option::is_none"
    )]
    pub on: Option<On>,
}

/// What holds for a node where a profile says nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Defaults {
    /// `deviceSplitCount`.
    pub split: u32,
    /// `deviceMemoryScaling`.
    pub memory_scaling: Scaling,
}

impl Timeslice {
    /// So many containers in turns, nothing else set.
    pub fn new(replicas: u32) -> Self {
        Self {
            replicas,
            rename: None,
            strict: false,
            slice_length: SliceLength::Default,
        }
    }
}

impl Mps {
    /// So many containers at once, nothing else set.
    pub fn new(replicas: u32) -> Self {
        Self {
            replicas,
            rename: None,
            strict: true,
            memory: Part::Even,
            threads: Part::Even,
            compute_mode: ComputeMode::ExclusiveProcess,
        }
    }
}

impl Mode {
    /// The mode with the node's own settings where it has none.
    pub fn filled(&self, defaults: &Defaults) -> Self {
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
                    if let Some(On::Vgpu(vgpu)) = &mut slice.on {
                        *vgpu = fill(vgpu);
                    }
                }
            }
            Self::Exclusive(_) | Self::Timeslice(_) | Self::Mps(_) | Self::Unmanaged => {}
        }
        mode
    }

    /// The resource that its pods ask for, where the usual one is `usual`. None for
    /// instances, which have names of their own, and for what is left to others.
    pub fn resource<'a>(&'a self, usual: &'a str) -> Option<&'a str> {
        let rename = match self {
            Self::Vgpu(_) => &None,
            Self::Exclusive(exclusive) => &exclusive.rename,
            Self::Timeslice(timeslice) => &timeslice.rename,
            Self::Mps(mps) => &mps.rename,
            Self::Mig(_) | Self::Unmanaged => return None,
        };
        Some(rename.as_deref().unwrap_or(usual))
    }
}

/// A mode's name alone, or its keys.
pub(crate) fn bare_or_full<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
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
