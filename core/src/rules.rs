//! A pod's requirements on devices besides capacity: models, UUIDs, pins, sharing modes, one
//! NUMA node, and the weights by which devices are compared.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use thiserror::Error;

use crate::burst::Burst;
use crate::excerpt::Excerpt;
use crate::id::GpuUuid;
use crate::inventory::{Gpu, Mode};
use crate::mig::published::{DynamicMig, Mig};
use crate::policy::Weights;
use crate::refusal::Reason;

/// The most bytes of [`ModelRules`].
const MOST_TEXT: usize = 1024;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Model {
    /// Exactly this model, ignoring case (`aliquot.dev/…`).
    Is(String),
    /// Every model whose name contains this, ignoring case (HAMi 4.6: `A10` also matches
    /// the A100).
    Contains(String),
}

impl Model {
    fn len(&self) -> usize {
        match self {
            Self::Is(text) | Self::Contains(text) => text.len(),
        }
    }

    fn matches(&self, name: &str) -> bool {
        match self {
            Self::Is(model) => model.eq_ignore_ascii_case(name),
            Self::Contains(part) => {
                let contains = |name: &str| {
                    let mut windows = name.as_bytes().windows(part.len());
                    windows.any(|window| window.eq_ignore_ascii_case(part.as_bytes()))
                };
                // HAMi registers every model with the vendor's name in front.
                let vendor = name.starts_with("NVIDIA");
                contains(name) || (!vendor && contains(&format!("NVIDIA-{name}")))
            }
        }
    }
}

/// The models that a pod accepts, if not all.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelRules {
    used: Vec<Model>,
    unused: Vec<Model>,
}

impl ModelRules {
    /// The rules that accept the models in `used`, or all if that is empty, but none in `unused`.
    /// `None` if that is every model, or more text than is worth keeping for each pod.
    pub fn new(used: Vec<Model>, unused: Vec<Model>) -> Option<Arc<Self>> {
        let text: usize = used.iter().chain(&unused).map(Model::len).sum();
        (1..=MOST_TEXT)
            .contains(&text)
            .then(|| Arc::new(Self { used, unused }))
    }

    pub fn accept(&self, model: &str) -> bool {
        accept(&self.used, &self.unused, model)
    }
}

fn accept(used: &[Model], unused: &[Model], name: &str) -> bool {
    let named = |models: &[Model]| models.iter().any(|model| model.matches(name));
    !named(unused) && (used.is_empty() || named(used))
}

/// A pod's requirements on devices. The default requires nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct DeviceRules {
    /// One of these models; any if empty.
    pub use_models: Vec<Model>,
    /// None of these models, whatever `use_models` says.
    pub nouse_models: Vec<Model>,
    /// One of these devices; any if empty.
    pub use_uuids: Vec<GpuUuid>,
    /// None of these devices, whatever `use_uuids` says.
    pub nouse_uuids: Vec<GpuUuid>,
    /// One of these, whatever the lists above say; any if empty.
    pub pins: Vec<Pin>,
    /// In one of these sharing modes; any if empty.
    pub modes: Vec<Mode>,
    /// Several replicas under one resource are replicas of one device, not one each of
    /// several devices.
    pub same_device: bool,
    /// All devices of a container on one NUMA node.
    pub one_numa: bool,
    /// The weights of replicas, compute and memory where devices are compared.
    pub weights: Weights,
    /// What each share may use beyond its request. It is no requirement: no device is refused for it.
    pub burst: Option<Burst>,
}

impl DeviceRules {
    /// Whether the rules may refuse a device whatever is allocated on it.
    pub fn restrict_devices(&self) -> bool {
        let models = self.use_models.len() + self.nouse_models.len();
        let uuids = self.use_uuids.len() + self.nouse_uuids.len();
        models + uuids + self.modes.len() + self.pins.len() > 0
    }

    /// Whether the rules name devices, besides models and modes.
    pub fn name_devices(&self) -> bool {
        self.use_uuids.len() + self.nouse_uuids.len() + self.pins.len() > 0
    }

    /// The models that they accept; `None` for any.
    pub fn models(&self) -> Option<Arc<ModelRules>> {
        ModelRules::new(self.use_models.clone(), self.nouse_models.clone())
    }

    /// Why the rules exclude this device (HAMi 4.6 rules 3 and 5).
    pub fn refuse(&self, gpu: &Gpu) -> Option<Reason> {
        let wrong_model = !accept(&self.use_models, &self.nouse_models, &gpu.model);
        let instance = gpu.mig.is_some() && self.modes.contains(&Mode::Mig);
        let wrong_mode = !(self.modes.is_empty() || self.modes.contains(&gpu.mode) || instance);
        if wrong_model || wrong_mode {
            return Some(Reason::CardTypeMismatch);
        }
        // A GPU's UUID also names its instances.
        let parent = gpu.mig.as_ref().and_then(Mig::fixed).map(|p| &p.parent);
        let named = |uuids: &[GpuUuid]| {
            let mut uuids = uuids.iter();
            uuids.any(|uuid| *uuid == gpu.uuid || Some(uuid) == parent)
        };
        let wrong_device = named(&self.nouse_uuids)
            || !(self.use_uuids.is_empty()
                || named(&self.use_uuids)
                || self.names_instance_on(gpu))
            || !(self.pins.is_empty() || self.pins.iter().any(|pin| pin.may_be(gpu)));
        wrong_device.then_some(Reason::CardUuidMismatch)
    }

    /// Whether the rules name an existing instance on this GPU under dynamic MIG.
    fn names_instance_on(&self, gpu: &Gpu) -> bool {
        let found = gpu.mig.as_ref().and_then(Mig::dynamic);
        let mut made = found.iter().flat_map(|found| &found.instances);
        made.any(|made| self.use_uuids.contains(&made.uuid))
    }

    /// Whether the rules allow an instance of this profile at this start of a GPU under
    /// dynamic MIG.
    pub(crate) fn allow_instance(
        &self,
        gpu: &Gpu,
        dynamic: &DynamicMig,
        profile: &str,
        start: u8,
    ) -> bool {
        let made = dynamic
            .instances
            .iter()
            .find(|made| made.profile == profile && made.start == start);
        let is_made = |uuid: &GpuUuid| made.is_some_and(|made| made.uuid == *uuid);
        let used = |uuid: &GpuUuid| *uuid == gpu.uuid || is_made(uuid);
        let mut pins = self.pins.iter();
        !self.nouse_uuids.iter().any(is_made)
            && (self.use_uuids.is_empty() || self.use_uuids.iter().any(used))
            && (self.pins.is_empty() || pins.any(|pin| pin.allows(gpu, dynamic, profile, start)))
    }
}

/// The expected forms of a pin, for error messages.
pub const PIN_FORMS: &str = "GPU-<uuid> or MIG-<uuid> as `nvidia-smi -L` prints them, <index>:<start> or <index>:<start>:<profile> for a MIG instance, such as 1:4:3g.20gb, or several, comma-separated";

/// Those of them that do not depend on the node.
pub const PIN_UUIDS: &str =
    "GPU-<uuid> or MIG-<uuid> as `nvidia-smi -L` prints them, or several, comma-separated";

/// A device that a pod names (`aliquot.dev/use-gpu`).
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

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} names no GPU; expected: {PIN_FORMS}")]
pub struct PinError(Excerpt);

impl FromStr for Pin {
    type Err = PinError;

    fn from_str(text: &str) -> Result<Self, PinError> {
        let refused = || PinError(text.into());
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
