//! One unit by name: a pod's pin (`aliquot.dev/use-gpu`).
//!
//! Fed by: [`crate::wishes`] with an annotation, the webhook with what a container
//! would set for itself. Must not: say whether the unit is free; that is [`crate::fit`].

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::id::GpuUuid;
use crate::inventory::Gpu;
use crate::mig::published::{Cut, Mig};

/// The accepted forms, for error texts.
pub const FORMS: &str = "GPU-<uuid> or MIG-<uuid> as `nvidia-smi -L` prints them, <index>:<start> or <index>:<start>:<profile> for a MIG instance, such as 1:4:3g.20gb, or several with commas between";

/// The forms that name a unit wherever it is.
pub const UUIDS: &str =
    "GPU-<uuid> or MIG-<uuid> as `nvidia-smi -L` prints them, or several with commas between";

/// A unit that a pod names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Pin {
    /// A card, or an instance. A card's instances are meant with it.
    Uuid(GpuUuid),
    /// An instance by its place.
    Place {
        /// NVML's index of the card.
        index: u32,
        /// Its first memory slice.
        start: u8,
        /// As the driver names it; any where it says none.
        profile: Option<String>,
    },
}

/// A pin that names nothing.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} names no GPU; accepted: {FORMS}")]
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
    /// The unit is meant, or an instance of the card may be.
    pub(crate) fn may_be(&self, gpu: &Gpu) -> bool {
        match (self, &gpu.mig) {
            (Self::Uuid(uuid), mig) if *uuid == gpu.uuid => !matches!(mig, Some(Mig::Unknown(_))),
            (Self::Uuid(uuid), Some(Mig::Part(part))) => part.parent == *uuid,
            (Self::Uuid(uuid), Some(Mig::Dynamic(cut))) => {
                cut.instances.iter().any(|made| made.uuid == *uuid)
            }
            (
                Self::Place {
                    index,
                    start,
                    profile,
                },
                Some(Mig::Part(part)),
            ) => {
                let alike = profile.as_ref().is_none_or(|name| *name == part.profile);
                *index == gpu.index && *start == part.start && alike
            }
            (Self::Place { index, .. }, Some(Mig::Dynamic(_))) => *index == gpu.index,
            (Self::Uuid(_) | Self::Place { .. }, _) => false,
        }
    }

    /// An instance of this profile at this start of this dynamic card is meant.
    pub(crate) fn allows(&self, gpu: &Gpu, cut: &Cut, name: &str, at: u8) -> bool {
        match self {
            Self::Uuid(uuid) => {
                let made = cut.instances.iter().find(|made| made.uuid == *uuid);
                *uuid == gpu.uuid
                    || made.is_some_and(|made| made.profile == name && made.start == at)
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
    fn mig_5_a_pin_names_a_card_an_instance_or_a_place() {
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
    fn mig_6_what_names_no_gpu_is_refused_with_the_accepted_forms() {
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
