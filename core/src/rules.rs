//! A pod's requirements on devices besides capacity: models, UUIDs, sharing modes, one NUMA
//! node, and the weights by which devices are compared.

use crate::id::GpuUuid;
use crate::inventory::{Gpu, Mode};
use crate::mig::published::{DynamicMig, Mig};
use crate::pin::Pin;
use crate::reason::Reason;
use crate::score::Weights;

/// A model that a pod names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Model {
    /// Exactly this model, ignoring case (`aliquot.dev/…`).
    Is(String),
    /// Every model whose name contains this, ignoring case (HAMi 4.6: `A10` also matches
    /// the A100).
    Contains(String),
}

impl Model {
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
}

impl DeviceRules {
    /// Whether the rules may refuse a device whatever is allocated on it.
    pub fn restrict_devices(&self) -> bool {
        let models = self.use_models.len() + self.nouse_models.len();
        let uuids = self.use_uuids.len() + self.nouse_uuids.len();
        models + uuids + self.modes.len() + self.pins.len() > 0
    }

    /// Why the rules exclude this device (HAMi 4.6 rules 3 and 5).
    pub fn refuse(&self, gpu: &Gpu) -> Option<Reason> {
        let model = |models: &[Model]| models.iter().any(|model| model.matches(&gpu.model));
        let wrong_model =
            model(&self.nouse_models) || !(self.use_models.is_empty() || model(&self.use_models));
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
        let mut made = dynamic.instances.iter();
        let made = made.find(|made| made.profile == profile && made.start == start);
        let is_made = |uuid: &GpuUuid| made.is_some_and(|made| made.uuid == *uuid);
        let used = |uuid: &GpuUuid| *uuid == gpu.uuid || is_made(uuid);
        let mut pins = self.pins.iter();
        !self.nouse_uuids.iter().any(is_made)
            && (self.use_uuids.is_empty() || self.use_uuids.iter().any(used))
            && (self.pins.is_empty() || pins.any(|pin| pin.allows(gpu, dynamic, profile, start)))
    }
}
