//! Why a node can or cannot take a pod, device by device. It only observes [`crate::fit`],
//! so that the explanation is the decision.

use serde::{Deserialize, Serialize};

use crate::demand::Demand;
use crate::fit::{self, Fit, FitTrace, Policies};
use crate::id::{GpuUuid, Namespace, NodeName};
use crate::inventory::{Gpu, Health};
use crate::mig::published::Mig;
use crate::node::{DeviceState, NodeState};
use crate::quota::{self, Headroom};
use crate::reason::{Reason, Refusal};
use crate::top::DeviceAmount;
use crate::usage::DeviceUse;

/// How one device was evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceEvaluation {
    /// The device's index.
    pub device: usize,
    /// What the pod would use of it.
    pub needs: DeviceUse,
    /// Why it cannot; `None` if it can.
    pub refused: Option<Reason>,
}

/// How a node was evaluated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeExplanation {
    /// The result of [`fit::fit`].
    pub outcome: Result<Fit, Refusal>,
    /// The container that did not fit, or the last one placed, as an index in
    /// [`Demand::containers`]. `None` if no device was evaluated.
    pub container: Option<usize>,
    /// Each device as evaluated for that container; empty if the node as a whole cannot
    /// take the pod.
    pub devices: Vec<DeviceEvaluation>,
}

#[derive(Debug, Default)]
struct TraceRecorder {
    container: Option<usize>,
    devices: Vec<DeviceEvaluation>,
}

impl FitTrace for TraceRecorder {
    fn container(&mut self, container: usize) {
        self.container = Some(container);
        self.devices.clear();
    }

    fn device(&mut self, device: usize, needs: DeviceUse, refused: Option<Reason>) {
        let evaluated = DeviceEvaluation {
            device,
            needs,
            refused,
        };
        // A device that fits by itself may be refused later because of others.
        match self.devices.iter_mut().find(|known| known.device == device) {
            Some(known) => *known = evaluated,
            None => self.devices.push(evaluated),
        }
    }
}

/// Evaluates the node as [`fit::fit`] does, and records the result for each device.
pub fn explain(node: &NodeState, demand: &Demand, policies: &Policies) -> NodeExplanation {
    let mut recorder = TraceRecorder::default();
    let outcome = fit::traced(node, demand, policies, &mut recorder);
    NodeExplanation {
        outcome,
        container: recorder.container,
        devices: recorder.devices,
    }
}

/// The answer for one node, for users and programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeAnswer {
    /// Which node.
    pub node: NodeName,
    /// kube-scheduler named it in the last refused call; `false` means that something
    /// besides GPUs excludes it, such as a taint.
    pub offered: bool,
    /// It can take the pod now.
    pub fits: bool,
    /// It could not once the pending placements are made.
    pub crowded: bool,
    /// The counted reasons; empty if it fits.
    pub why: String,
    /// The container that did not fit, or the last one placed.
    pub container: Option<String>,
    /// Its devices.
    pub gpus: Vec<GpuAnswer>,
}

/// The answer for one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuAnswer {
    /// Its UUID.
    pub gpu: GpuUuid,
    /// NVML's index.
    pub index: u32,
    /// NVML's product name.
    pub model: String,
    /// What is free of it.
    pub left: DeviceAmount,
    /// What the pod would use of it; `null` if the device was not evaluated.
    pub needs: Option<DeviceAmount>,
    /// `chosen` (the pod would get it), `fits`, the reason why not, or `-` if the device was
    /// not evaluated because the node cannot take the pod.
    pub answer: String,
    /// Details of the reason: what is wrong with the device, which slices are free and
    /// where the profile may start, or for whom the device is reserved.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// The pod would get this device.
pub const CHOSEN: &str = "chosen";
/// The device fits.
pub const FITS: &str = "fits";
/// The device was not evaluated.
pub const NOT_ASKED: &str = "-";

impl NodeAnswer {
    /// Evaluates the node; returns the answer, and the refusal if there is one. The caller
    /// knows whether it was `offered`; `crowd` is the node with its pending placements, and
    /// `headroom` is what the quotas leave.
    pub fn of(
        name: &NodeName,
        node: &NodeState,
        demand: &Demand,
        policies: &Policies,
        offered: bool,
        crowd: Option<&NodeState>,
        headroom: Option<&Headroom>,
    ) -> (Self, Option<Refusal>) {
        let explained = explain(node, demand, policies);
        let refusal = match &explained.outcome {
            Err(refusal) => Some(refusal.clone()),
            // The devices fit; the namespace's quota may not.
            Ok(fit) => {
                let amount = quota::QuotaAmount::of(fit.uses.iter().map(|(_, used)| used));
                let over = headroom.and_then(|left| left.excess(amount));
                over.map(Refusal::quota_exceeded)
            }
        };
        let fits = refusal.is_none();
        let crowded = fits && crowd.is_some_and(|node| fit::fit(node, demand, policies).is_err());
        let container = explained.container;
        let answer = Self {
            node: name.clone(),
            offered,
            fits,
            crowded,
            why: refusal
                .as_ref()
                .map_or_else(String::new, ToString::to_string),
            container: container.map(|at| demand.containers[at].name.clone()),
            gpus: gpus(node, demand, &explained),
        };
        (answer, refusal)
    }
}

/// The details of a reason.
fn detail(
    node: &NodeState,
    demand: &Demand,
    container: usize,
    evaluated: &DeviceEvaluation,
) -> String {
    let gpu = node
        .inventory
        .as_ref()
        .map(|found| &found.gpus[evaluated.device]);
    let Some((gpu, reason)) = gpu.zip(evaluated.refused) else {
        return String::new();
    };
    match (reason, &gpu.health, &gpu.cordon) {
        (Reason::CardNotHealth, Health::Unhealthy(why), _)
        | (Reason::CardCordoned, _, Some(why)) => {
            return why.clone();
        }
        (Reason::CardReserved, ..) => return reservation(gpu, &demand.namespace),
        _ => {}
    }
    let slices = [Reason::CardMigNoPlacement, Reason::CardInsufficientMemory];
    let mig_state = node
        .dynamic_mig
        .iter()
        .find(|mig_state| mig_state.device == evaluated.device);
    let found = gpu.mig.as_ref().and_then(Mig::dynamic);
    let Some((mig_state, found)) = mig_state.zip(found).filter(|_| slices.contains(&reason)) else {
        return String::new();
    };
    let requests = demand.containers[container].requests.iter();
    let mut texts = requests.filter_map(|request| {
        mig_state.describe_free_slices(&found.geometry, demand.resource(request))
    });
    texts.next().unwrap_or_default()
}

/// For whom a device, or placements on it, are reserved.
fn reservation(gpu: &Gpu, from: &Namespace) -> String {
    let list = |namespaces: &[Namespace]| {
        let names: Vec<&str> = namespaces.iter().map(Namespace::as_str).collect();
        names.join(", ")
    };
    if !gpu.reserved.is_empty() {
        return format!("reserved for pods of {}", list(&gpu.reserved));
    }
    let found = gpu.mig.as_ref().and_then(Mig::dynamic);
    let all = found.iter().flat_map(|found| &found.reserved);
    let others = all.filter(|reservation| !reservation.namespaces.contains(from));
    let texts: Vec<String> = others
        .map(|reservation| {
            let (profile, start) = (&reservation.placement.profile, reservation.placement.start);
            format!(
                "{profile}@{start} is reserved for pods of {}",
                list(&reservation.namespaces)
            )
        })
        .collect();
    texts.join("; ")
}

fn gpus(node: &NodeState, demand: &Demand, explained: &NodeExplanation) -> Vec<GpuAnswer> {
    let gpus = node.inventory.iter().flat_map(|inventory| &inventory.gpus);
    let devices = gpus.zip(&node.devices).enumerate();
    let answer = |(place, (gpu, device)): (usize, (_, &DeviceState))| {
        let gpu: &Gpu = gpu;
        let evaluated = explained
            .devices
            .iter()
            .find(|evaluated| evaluated.device == place);
        let placed = explained.outcome.as_ref().map_or(&[][..], |fit| &fit.uses);
        let chosen = placed.iter().find(|(chosen, _)| *chosen == place);
        let (needs, answer) = match (chosen, evaluated) {
            (Some((_, used)), _) => (Some(*used), CHOSEN),
            (None, Some(evaluated)) => {
                let answer = evaluated.refused.map_or(FITS, Reason::name);
                (Some(evaluated.needs), answer)
            }
            (None, None) => (None, NOT_ASKED),
        };
        GpuAnswer {
            gpu: gpu.uuid.clone(),
            index: gpu.index,
            model: gpu.model.clone(),
            left: DeviceAmount::left(device),
            needs: needs.map(DeviceAmount::from),
            answer: answer.to_owned(),
            detail: match (evaluated, explained.container) {
                (Some(evaluated), Some(container)) => detail(node, demand, container, evaluated),
                _ => String::new(),
            },
        }
    };
    devices.map(answer).collect()
}
