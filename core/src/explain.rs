//! Why a node can or cannot take a pod, device by device. It only observes [`crate::fit`],
//! so that the explanation is the decision. The answer of `GET /explain` is a type here,
//! which the scheduler writes and `kubectl-aliquot` reads.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::burst::Burst;
use crate::demand::{ContainerDemand, Demand};
use crate::fit::{self, Fit, FitTrace};
use crate::id::{GpuUuid, Namespace, NodeName, PodUid};
use crate::inventory::{Gpu, Health};
use crate::mig::is_resource_of;
use crate::mig::published::{Mig, MigPlacement};
use crate::node::{DeviceState, NodeState};
use crate::quota::Headroom;
use crate::refusal::{Reason, Refusal};
use crate::request::{GpuRequest, Memory};
use crate::score::Policies;
use crate::top::DeviceAmount;
use crate::units::{Mib, Percent};
use crate::usage::{DeviceUse, DeviceUses, Stage};

/// What the devices answered to the container that did not fit, or to the last one placed.
#[derive(Debug, Default)]
struct Evaluations {
    /// An index in [`Demand::containers`]. `None` if no device was evaluated.
    container: Option<usize>,
    /// By its index, what the pod would use of a device, and why it cannot.
    devices: BTreeMap<usize, (DeviceUse, Option<Reason>)>,
}

impl FitTrace for Evaluations {
    fn container(&mut self, container: usize) {
        self.container = Some(container);
        self.devices.clear();
    }

    fn device(&mut self, device: usize, needs: DeviceUse, refused: Option<Reason>) {
        // A device that fits by itself may be refused later because of others.
        self.devices.insert(device, (needs, refused));
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeAnswer {
    pub node: NodeName,
    /// kube-scheduler named it in the last refused call; `false` means that something
    /// besides GPUs excludes it, such as a taint.
    pub offered: bool,
    /// It can take the pod now.
    pub fits: bool,
    /// The counted reasons; empty if it fits.
    pub why: String,
    /// The container that did not fit, or the last one placed.
    pub container: Option<String>,
    pub gpus: Vec<GpuAnswer>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuAnswer {
    pub gpu: GpuUuid,
    pub index: u32,
    /// NVML's product name.
    pub model: String,
    pub left: DeviceAmount,
    /// What the pod would use of it; `null` if the device was not evaluated.
    pub needs: Option<DeviceAmount>,
    /// `chosen` (the pod would get it), `fits`, the reason why not, or `-` if the device was
    /// not evaluated because the node cannot take the pod.
    pub answer: String,
    /// Details of the reason: what is wrong with the device, which slices are free and
    /// where the profile may start, that the device is reserved, or what is withheld.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// The pod would get this device.
pub const CHOSEN: &str = "chosen";
pub const FITS: &str = "fits";
/// The device was not evaluated.
pub const NOT_ASKED: &str = "-";

impl NodeAnswer {
    /// Evaluates the node; returns the answer, and the refusal if there is one. The caller
    /// knows whether it was `offered`; `headroom` is what the quotas leave.
    pub fn evaluate(
        name: &NodeName,
        node: &NodeState,
        demand: &Demand,
        policies: &Policies,
        offered: bool,
        headroom: Option<&Headroom>,
    ) -> (Self, Option<Refusal>) {
        let mut evaluated = Evaluations::default();
        let outcome = fit::traced(node, demand, policies, &mut evaluated);
        let refusal = match &outcome {
            Err(refusal) => Some(refusal.clone()),
            // The devices fit; the namespace's quota may not.
            Ok(fit) => {
                let over = headroom.and_then(|left| left.excess(fit.amount()));
                over.map(Refusal::quota_exceeded)
            }
        };
        let fits = refusal.is_none();
        let container = evaluated.container;
        let answer = Self {
            node: name.clone(),
            offered,
            fits,
            why: refusal
                .as_ref()
                .map_or_else(String::new, ToString::to_string),
            container: container.map(|at| demand.containers[at].name.clone()),
            gpus: gpus(node, demand, outcome.as_ref().ok(), &evaluated),
        };
        (answer, refusal)
    }
}

fn detail(
    node: &NodeState,
    demand: &Demand,
    container: usize,
    (place, gpu): (usize, &Gpu),
    reason: Reason,
) -> String {
    let device = &node.devices[place];
    match (reason, &gpu.health, &gpu.cordon) {
        (Reason::CardNotHealth, Health::Unhealthy(why), _)
        | (Reason::CardCordoned, _, Some(why)) => {
            return why.clone();
        }
        (Reason::GpuReserved, ..) => return reservation(gpu, &demand.namespace),
        (Reason::CardInsufficientMemory, ..) if device.withheld > Mib(0) => {
            let held = device.unmanaged;
            return format!("processes outside every share hold {held}");
        }
        _ => {}
    }
    let slices = [Reason::MigNoPlacement, Reason::CardInsufficientMemory];
    let found = node.dynamic(place);
    let Some((mig_state, found)) = found.filter(|_| slices.contains(&reason)) else {
        return String::new();
    };
    let requests = demand.containers[container].requests.iter();
    let mut texts = requests.filter_map(|request| {
        mig_state.describe_free_slices(&found.geometry, demand.resource(request))
    });
    texts.next().unwrap_or_default()
}

/// For how many namespaces a device, or placements on it, are reserved. They are not named to the pods
/// of another one.
fn reservation(gpu: &Gpu, from: &Namespace) -> String {
    let count = |namespaces: &[Namespace]| match namespaces.len() {
        1 => "1 other namespace".to_owned(),
        more => format!("{more} other namespaces"),
    };
    if !gpu.reserved.is_empty() {
        return format!("reserved for pods of {}", count(&gpu.reserved));
    }
    let found = gpu.mig.as_ref().and_then(Mig::dynamic);
    let all = found.iter().flat_map(|found| &found.reserved);
    let others = all.filter(|reservation| !reservation.namespaces.contains(from));
    let texts: Vec<String> = others
        .map(|reservation| {
            let (profile, start) = (&reservation.placement.profile, reservation.placement.start);
            format!(
                "{profile}@{start} is reserved for pods of {}",
                count(&reservation.namespaces)
            )
        })
        .collect();
    texts.join("; ")
}

fn gpus(
    node: &NodeState,
    demand: &Demand,
    fit: Option<&Fit>,
    evaluated: &Evaluations,
) -> Vec<GpuAnswer> {
    let placed = fit.map_or(&[][..], |fit| &fit.uses);
    let devices = node.gpus().zip(&node.devices).enumerate();
    let answer = |(place, (gpu, device)): (usize, (&Gpu, &DeviceState))| {
        let chosen = placed.iter().find(|(chosen, _)| *chosen == place);
        let found = evaluated.devices.get(&place).copied();
        let (needs, answer) = match (chosen, found) {
            (Some((_, used)), _) => (Some(*used), CHOSEN),
            (None, Some((needs, refused))) => (Some(needs), refused.map_or(FITS, Reason::name)),
            (None, None) => (None, NOT_ASKED),
        };
        let refused = found.and_then(|(_, refused)| refused);
        let detail = evaluated
            .container
            .zip(refused)
            .map(|(container, reason)| detail(node, demand, container, (place, gpu), reason));
        GpuAnswer {
            gpu: gpu.uuid.clone(),
            index: gpu.index,
            model: gpu.model.clone(),
            left: DeviceAmount::left(device),
            needs: needs.map(DeviceAmount::from),
            answer: answer.to_owned(),
            detail: detail.unwrap_or_default(),
        }
    };
    devices.map(answer).collect()
}

/// Whether a pod with this allocation uses a device that the demand's pins name, or a part
/// of it.
pub fn blocks_pinned_device(node: &NodeState, demand: &Demand, allocated: &DeviceUses) -> bool {
    let pins = &demand.rules.pins;
    let mut meant = node
        .gpus()
        .flat_map(|gpu| pins.iter().map(move |pin| (gpu, pin)));
    meant.any(|(gpu, pin)| {
        let Some(found) = gpu.mig.as_ref().and_then(Mig::dynamic) else {
            return pin.may_be(gpu) && allocated.contains_key(&gpu.uuid);
        };
        let profiles = found.geometry.profiles();
        let mut requested = 0_u16;
        for profile in profiles {
            let mut names = demand.resources.iter();
            if !names.any(|name| is_resource_of(name, &profile.name)) {
                continue;
            }
            for &start in &profile.starts {
                if pin.allows(gpu, found, &profile.name, start) {
                    requested |= profile.slices(start);
                }
            }
        }
        allocated
            .keys()
            .filter_map(MigPlacement::parse_device_key)
            .any(|(device, placed)| {
                let profile = profiles.iter().find(|p| p.name == placed.profile);
                let slices = profile.map_or(u16::MAX, |profile| profile.slices(placed.start));
                device == gpu.uuid.as_str() && slices & requested != 0
            })
    })
}

/// The part about the pod itself, before its nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PodHeader {
    pub namespace: String,
    pub name: String,
    pub uid: PodUid,
    /// This scheduler replica may bind: it is the one that kube-scheduler asks.
    pub leads: bool,
    /// What its containers ask for; containers without a GPU are left out.
    pub requests: Vec<RequestedShare>,
    /// The amounts stand in the pod's annotation, not in its containers' resources.
    #[serde(default)]
    pub annotated: bool,
    /// What each share may use beyond its request, which alone has to fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<Burst>,
    /// Its refusals, if this scheduler replica refused it.
    pub refused: Option<RefusalHistory>,
    /// What kube-scheduler reports, if it has not placed the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<SchedulingCondition>,
    /// Where it is allocated; then no node is evaluated.
    pub placement: Option<PodPlacement>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestedShare {
    pub container: String,
    /// `app`, `init` or `sidecar`.
    pub stage: String,
    /// The resource; empty in the answer of an older scheduler.
    #[serde(default)]
    pub resource: String,
    pub count: u32,
    /// Memory of each, with its unit.
    pub memory: String,
    pub cores: Percent,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RefusalHistory {
    pub times: u32,
    /// Seconds since the first.
    pub first_seconds_ago: f64,
    /// Seconds since the last.
    pub last_seconds_ago: f64,
    pub text: String,
}

/// The pod's condition `PodScheduled` while it is False.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchedulingCondition {
    /// Such as `Unschedulable`.
    pub reason: String,
    /// kube-scheduler's words.
    pub message: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodPlacement {
    pub node: NodeName,
    /// The API server confirmed it; otherwise its Binding is under way.
    pub confirmed: bool,
    /// What it uses of each device; `null` if its allocation is unreadable.
    pub gpus: Option<BTreeMap<GpuUuid, DeviceAmount>>,
}

/// The part about all nodes together, after the nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeTotals {
    pub offered: u32,
    /// Those of them that can take the pod now.
    pub fitting: u32,
    /// Why the others cannot, counted.
    pub why: String,
    #[serde(skip)]
    refusal: Refusal,
}

impl NodeTotals {
    pub fn add(&mut self, node: &NodeAnswer, refusal: Option<&Refusal>) {
        if !node.offered {
            return;
        }
        self.offered += 1;
        match refusal {
            None => self.fitting += 1,
            Some(refusal) => self.refusal.merge(refusal),
        }
        self.why = self.refusal.to_string();
    }
}

/// The whole answer of `GET /explain/<namespace>/<pod>`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PodAnswer {
    #[serde(flatten)]
    pub head: PodHeader,
    pub nodes: Vec<NodeAnswer>,
    /// All of them together.
    #[serde(flatten)]
    pub tail: NodeTotals,
}

pub fn container_requests(demand: &Demand) -> Vec<RequestedShare> {
    let containers = demand.containers.iter();
    let asking = containers.flat_map(|c| c.requests.iter().map(move |request| (c, request)));
    let line = |(container, request): (&ContainerDemand, &GpuRequest)| RequestedShare {
        container: container.name.clone(),
        stage: match container.stage {
            Stage::App => "app",
            Stage::Init => "init",
            Stage::Sidecar => "sidecar",
        }
        .to_owned(),
        resource: demand.resource(request).to_owned(),
        count: request.count,
        memory: match request.memory {
            Memory::Mib(memory) => memory.to_string(),
            Memory::Share(part) => part.to_string(),
        },
        cores: request.cores,
    };
    asking.map(line).collect()
}
