//! A device that a pod names: `aliquot.dev/use-gpu`.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::id::GpuUuid;
use crate::inventory::Gpu;
use crate::mig::published::{DynamicMig, Mig};

/// The expected forms, for error messages.
pub const FORMS: &str = "GPU-<uuid> or MIG-<uuid> as `nvidia-smi -L` prints them, <index>:<start> or <index>:<start>:<profile> for a MIG instance, such as 1:4:3g.20gb, or several, comma-separated";

/// The forms that do not depend on the node.
pub const UUIDS: &str =
    "GPU-<uuid> or MIG-<uuid> as `nvidia-smi -L` prints them, or several, comma-separated";

/// A device that a pod names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Pin {
    /// A GPU, with all its instances, or an instance.
    Uuid(GpuUuid),
    /// An instance by its placement.
    Place {
        /// NVML's index of the GPU.
        index: u32,
        /// Its first memory slice.
        start: u8,
        /// The driver's name of the profile; any profile if none.
        profile: Option<String>,
    },
}

/// A pin that names no device.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} names no GPU; expected: {FORMS}")]
pub struct PinError(String);

impl FromStr for Pin {
    type Err = PinError;

    fn from_str(text: &str) -> Result<Self, PinError> {
        let refused = || PinError(text.to_owned());
        let bare = text
            .strip_prefix("GPU-")
            .or_else(|| text.strip_prefix("MIG-"));
        if let Some(bare) = bare {
            let good = is_uuid(bare);
            return good.then(|| Self::Uuid(text.into())).ok_or_else(refused);
        }
        let mut parts = text.splitn(3, ':');
        let mut number = || parts.next().filter(|part| part.len() <= 3);
        let index = number().and_then(|part| part.parse().ok());
        let start = number().and_then(|part| part.parse().ok());
        let profile = parts.next().map(str::to_owned);
        let named = profile.as_deref().is_none_or(is_profile);
        match (index, start) {
            (Some(index), Some(start)) if named => Ok(Self::Place {
                index,
                start,
                profile,
            }),
            _ => Err(refused()),
        }
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uuid(uuid) => write!(f, "{uuid}"),
            Self::Place {
                index,
                start,
                profile: None,
            } => write!(f, "{index}:{start}"),
            Self::Place {
                index,
                start,
                profile: Some(profile),
            } => write!(f, "{index}:{start}:{profile}"),
        }
    }
}

/// 8-4-4-4-12 hexadecimal digits.
fn is_uuid(text: &str) -> bool {
    let lengths = text.split('-').map(|part| {
        let hex = part.bytes().all(|b| b.is_ascii_hexdigit());
        if hex { part.len() } else { 0 }
    });
    lengths.eq([8, 4, 4, 4, 12])
}

/// Such as `1g.5gb` or `1g.5gb+me`.
fn is_profile(text: &str) -> bool {
    let (compute, memory) = text.split_once("g.").unwrap_or_default();
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let memory = memory
        .split(['+', '-'])
        .next()
        .and_then(|m| m.strip_suffix("gb"));
    digits(compute) && memory.is_some_and(digits)
}

impl Pin {
    /// Whether the pin names the device, or may name an instance on the GPU.
    pub(crate) fn may_be(&self, gpu: &Gpu) -> bool {
        match (self, &gpu.mig) {
            (Self::Uuid(uuid), mig) if *uuid == gpu.uuid => !matches!(mig, Some(Mig::Unknown(_))),
            (Self::Uuid(uuid), Some(Mig::Fixed(part))) => part.parent == *uuid,
            (Self::Uuid(uuid), Some(Mig::Dynamic(dynamic))) => dynamic
                .instances
                .iter()
                .any(|instance| instance.uuid == *uuid),
            (
                Self::Place {
                    index,
                    start,
                    profile,
                },
                Some(Mig::Fixed(part)),
            ) => {
                let alike = profile.as_ref().is_none_or(|name| *name == part.profile);
                *index == gpu.index && *start == part.start && alike
            }
            (Self::Place { index, .. }, Some(Mig::Dynamic(_))) => *index == gpu.index,
            (Self::Uuid(_) | Self::Place { .. }, _) => false,
        }
    }

    /// Whether the pin names an instance of this profile at this start of this GPU.
    pub(crate) fn allows(&self, gpu: &Gpu, dynamic: &DynamicMig, name: &str, at: u8) -> bool {
        match self {
            Self::Uuid(uuid) => {
                let instance = dynamic
                    .instances
                    .iter()
                    .find(|instance| instance.uuid == *uuid);
                *uuid == gpu.uuid
                    || instance
                        .is_some_and(|instance| instance.profile == name && instance.start == at)
            }
            Self::Place {
                index,
                start,
                profile,
            } => {
                let alike = profile.as_ref().is_none_or(|profile| profile == name);
                *index == gpu.index && *start == at && alike
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mig_5_pin_names_a_gpu_an_instance_or_a_placement() {
        for text in [
            "GPU-5a2e6a4e-95b9-1f7c-0d23-7b6a9c0d1e2f",
            "MIG-5a2e6a4e-95b9-1f7c-0d23-7b6a9c0d1e2f",
            "0:6",
            "1:4:3g.20gb",
            "12:0:1g.5gb+me",
            "0:4:1g.24gb-me",
        ] {
            let pin: Pin = text.parse().expect(text);
            assert_eq!(pin.to_string(), text);
        }
    }

    #[test]
    fn mig_6_rejects_pin_that_names_no_gpu_with_expected_forms() {
        for text in [
            "",
            "all",
            "0",
            "GPU-0",
            "GPU-5a2e6a4e-95b9-1f7c-0d23-7b6a9c0d1e2",
            "GPU-5a2e6a4e-95b9-1f7c-0d23-7b6a9c0d1eXX",
            "MIG-GPU-5a2e6a4e-95b9-1f7c-0d23-7b6a9c0d1e2f/7/0",
            "5a2e6a4e-95b9-1f7c-0d23-7b6a9c0d1e2f",
            "1:",
            "1:x",
            "1:4:",
            "1:4:big",
            "1:4:g.gb",
            "1000:4",
        ] {
            let error = text.parse::<Pin>().unwrap_err().to_string();
            assert!(error.contains("GPU-<uuid> or MIG-<uuid>"), "{error}");
        }
    }
}
