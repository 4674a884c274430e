//! Resizing the share of a running pod: what `aliquot.dev/resize` asks for, whether the pod's GPUs
//! and quotas allow it, and how far it is (`aliquot.dev/resize-status`).
//!
//! While a resize is under way, the pod's allocation is the larger of the old and the new one,
//! grant by grant, because its node may enforce either. It becomes the new one when the node
//! reports that it enforces that, so no memory is promised twice. If the resize is refused
//! meanwhile, one back to the old share follows.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::allocation::{self, Allocation, CodecError, Grant};
use crate::excerpt::Excerpt;
use crate::id::GpuUuid;
use crate::inventory::{Gpu, Mode};
use crate::node::{DeviceState, NodeState};
use crate::quota::{Headroom, QuotaAmount, QuotaExcess};
use crate::refusal::Reason;
use crate::request::{RequestError, Resource, Written};
use crate::units::{Mib, Percent};
use crate::usage::{self, DeviceUse, DeviceUses, Stage};

/// The pod annotation that asks for a resize.
pub const RESIZE: &str = "aliquot.dev/resize";
/// The pod annotation that says how far it is; only the scheduler writes it.
pub const RESIZE_STATUS: &str = "aliquot.dev/resize-status";
/// The version of the status that this release writes.
pub const VERSION: u32 = 1;
/// Seconds that a smaller share waits for use to fall, where the annotation names none.
pub const DEADLINE: u64 = 600;
/// The longest such time: a week.
const MAX_DEADLINE: u64 = 7 * 24 * 3600;
/// The amounts of a container, by their names in the annotation, which are flags of `kubectl aliquot
/// resize` too.
pub const AMOUNTS: [(&str, Resource); 3] = [
    ("gpumem", Resource::Memory),
    ("gpumem-percentage", Resource::MemoryPercentage),
    ("gpucores", Resource::Cores),
];

/// Why an annotation is invalid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ResizeError {
    #[error("no container is named; expected: {FORM}")]
    Empty,
    #[error("{0:?} is unknown; expected: {FORM}")]
    Unknown(Excerpt),
    #[error("{0} is written twice; expected: once")]
    Twice(Excerpt),
    #[error("container {container:?}, {}: {source}", field(.source.resource()))]
    Amount {
        container: Excerpt,
        source: RequestError,
    },
    #[error("deadline {0:?} is out of range; expected: whole seconds, 1 to {MAX_DEADLINE}")]
    Deadline(Excerpt),
}

const FORM: &str = "CONTAINER:gpumem=MIB,gpucores=PERCENT for each container, separated by spaces, with gpumem-percentage=PERCENT in place of gpumem, then deadline=SECONDS and id=WORD if wanted";

fn field(resource: Resource) -> &'static str {
    let known = AMOUNTS.iter().find(|(_, known)| *known == resource);
    known.map_or("amounts", |(name, _)| name)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResizeRequest {
    /// The new amounts by container; others stay as they are.
    pub containers: BTreeMap<String, Written>,
    /// Seconds that it may wait for use to fall.
    pub deadline: u64,
}

impl ResizeRequest {
    /// Reads `main:gpumem=6000,gpucores=40 sidecar:gpumem=500 deadline=60`. The word of `id=` has no
    /// meaning: it makes a text new, which asks again.
    pub fn parse(text: &str) -> Result<Self, ResizeError> {
        let mut containers = BTreeMap::new();
        let (mut deadline, mut id) = (None, None);
        for item in text.split_whitespace() {
            let again = if let Some((container, amounts)) = item.split_once(':') {
                let written = read_amounts(container, amounts)?;
                containers.insert(container.to_owned(), written).is_some()
            } else if let Some(seconds) = item.strip_prefix("deadline=") {
                deadline.replace(read_deadline(seconds)?).is_some()
            } else if let Some(word) = item.strip_prefix("id=") {
                id.replace(word).is_some()
            } else {
                return Err(ResizeError::Unknown(item.into()));
            };
            if again {
                return Err(ResizeError::Twice(item.into()));
            }
        }
        if containers.is_empty() {
            return Err(ResizeError::Empty);
        }
        Ok(Self {
            containers,
            deadline: deadline.unwrap_or(DEADLINE),
        })
    }
}

fn read_deadline(text: &str) -> Result<u64, ResizeError> {
    let seconds = text.parse().ok();
    seconds
        .filter(|seconds| (1..=MAX_DEADLINE).contains(seconds))
        .ok_or_else(|| ResizeError::Deadline(text.into()))
}

fn read_amounts(container: &str, amounts: &str) -> Result<Written, ResizeError> {
    let mut values = BTreeMap::new();
    for amount in amounts.split(',') {
        let unknown = || ResizeError::Unknown(Excerpt::of(format_args!("{container}:{amount}")));
        let (name, value) = amount.split_once('=').ok_or_else(unknown)?;
        let known = AMOUNTS.iter().find(|(known, _)| *known == name);
        let (_, resource) = known.ok_or_else(unknown)?;
        if values.insert(*resource, value).is_some() {
            return Err(ResizeError::Twice(Excerpt::of(format_args!(
                "{container}:{name}"
            ))));
        }
    }
    let read = Written::read(|resource| values.get(&resource).copied());
    read.map_err(|mut errors| ResizeError::Amount {
        container: container.into(),
        source: errors.swap_remove(0),
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ResizeState {
    /// The node enforces it.
    Applied,
    /// The node does not enforce it yet.
    Waiting,
    /// The node does not enforce it, and will not.
    Refused,
}

/// A resize that its node has not reported as enforced yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingResize {
    /// What the node shall enforce. The pod's allocation is at least this.
    pub to: Allocation,
    /// What the pod gets back if it is refused.
    pub from: Allocation,
    /// When it is refused, in seconds since 1970; `None` for one back to the old share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<u64>,
}

/// The content of `aliquot.dev/resize-status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResizeStatus {
    pub v: u32,
    /// Counts what the node was asked to enforce; it ignores what is older.
    pub generation: u64,
    pub state: ResizeState,
    /// Why, and what would fit.
    pub message: String,
    /// The text of the annotation that it answers.
    pub request: String,
    /// What the node has still to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<PendingResize>,
    /// When another request is decided at the earliest, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

impl ResizeStatus {
    /// Whether another request has to wait at this second. A pause longer than `interval` was written
    /// by a clock that went wrong.
    pub fn defers(&self, now: u64, interval: Duration) -> bool {
        let pause = self.next.and_then(|next| next.checked_sub(now));
        pause.is_some_and(|pause| (1..=interval.as_secs()).contains(&pause))
    }

    /// The annotation's text.
    pub fn encode(&self) -> Result<String, CodecError> {
        serde_json::to_string(self).map_err(|source| CodecError::Encode { source })
    }

    /// Reads the annotation's text, ignoring unknown fields.
    pub fn decode(text: &str) -> Result<Self, CodecError> {
        allocation::decode(text, VERSION, |status: &Self| status.v)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resized {
    /// What the node shall enforce.
    pub to: Allocation,
    /// What is allocated until it does: the larger of everything that it may enforce.
    pub allocation: Allocation,
}

/// Why a resize is refused, and what would fit.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ResizeRefusal {
    #[error(
        "container {:?} has no share of a GPU; expected: one of {}",
        Excerpt::from(container.as_str()),
        known.join(", ")
    )]
    NoShare {
        container: String,
        known: Vec<String>,
    },
    /// The node does not have the device now.
    #[error("{0} is not in the inventory of the pod's node")]
    DeviceGone(GpuUuid),
    /// The device's sharing mode has shares of a fixed size.
    #[error(
        "{gpu} is shared in mode {}, whose shares cannot be resized; expected: a GPU in mode vgpu",
        mode.name()
    )]
    FixedSize { gpu: GpuUuid, mode: Mode },
    /// The node takes nothing new.
    #[error("the pod's node takes nothing new ({0})")]
    Node(Reason),
    /// The device has too little left.
    #[error(
        "{gpu} has too little left ({reason}): the pod would use {} and {} compute of it; what fits: {} and {} compute",
        asked.memory,
        asked.cores,
        fits.0,
        fits.1
    )]
    Full {
        gpu: GpuUuid,
        reason: Reason,
        /// What the pod would use of it.
        asked: DeviceUse,
        /// What it could use of it.
        fits: (Mib, Percent),
    },
    /// A quota would be exceeded.
    #[error("{0}")]
    Quota(Box<QuotaExcess>),
}

/// Decides on a request of a pod with this allocation, which had the share `from` before a resize
/// that is still under way, if any. `node` and `headroom` are without the pod; `stages` are those of
/// its containers in pod order.
pub fn resize(
    allocation: &Allocation,
    from: &Allocation,
    request: &ResizeRequest,
    stages: &[(String, Stage)],
    node: &NodeState,
    headroom: Option<&Headroom>,
) -> Result<Resized, ResizeRefusal> {
    let mut to = from.clone();
    for (container, written) in &request.containers {
        let of_container = to.containers.get_mut(container);
        let grants = of_container.or_else(|| to.init.get_mut(container));
        let Some(grants) = grants.filter(|grants| !grants.is_empty()) else {
            let known = from.all().filter(|(_, grants)| !grants.is_empty());
            return Err(ResizeRefusal::NoShare {
                container: container.clone(),
                known: known.map(|(name, _)| name.to_owned()).collect(),
            });
        };
        for grant in grants {
            let (gpu, _) = device(node, &grant.gpu)?;
            if gpu.mode != Mode::Vgpu || grant.mig.is_some() {
                return Err(ResizeRefusal::FixedSize {
                    gpu: grant.gpu.clone(),
                    mode: gpu.mode,
                });
            }
            write_amounts(grant, written, gpu.scaled);
        }
    }
    let both = larger(allocation, &to);
    let now = uses(allocation, stages);
    let then = uses(&both, stages);
    for (gpu, asked) in &then {
        let own = now.get(gpu).copied().unwrap_or_default();
        if is_within(asked, &own) {
            continue;
        }
        if let Some(reason) = node.closed {
            return Err(ResizeRefusal::Node(reason));
        }
        let (_, state) = device(node, gpu)?;
        if let Some(reason) = state.refuse(asked) {
            return Err(ResizeRefusal::Full {
                gpu: gpu.clone(),
                reason,
                asked: *asked,
                fits: fits(state, &own),
            });
        }
    }
    let (before, after) = (
        QuotaAmount::sum(now.values()),
        QuotaAmount::sum(then.values()),
    );
    // A quota that was lowered since does not forbid what does not grow.
    let added = QuotaAmount {
        memory: Some(after.memory)
            .filter(|memory| *memory > before.memory)
            .unwrap_or_default(),
        cores: Some(after.cores)
            .filter(|cores| *cores > before.cores)
            .unwrap_or_default(),
    };
    match headroom.and_then(|headroom| headroom.excess(added)) {
        Some(excess) => Err(ResizeRefusal::Quota(excess.into())),
        None => Ok(Resized {
            to,
            allocation: both,
        }),
    }
}

fn device<'n>(
    node: &'n NodeState,
    uuid: &GpuUuid,
) -> Result<(&'n Gpu, &'n DeviceState), ResizeRefusal> {
    let mut devices = node.gpus().zip(&node.devices);
    let found = devices.find(|(gpu, _)| gpu.uuid == *uuid);
    found.ok_or_else(|| ResizeRefusal::DeviceGone(uuid.clone()))
}

/// The amounts are those on each replica, as in a request.
fn write_amounts(grant: &mut Grant, written: &Written, scaled: Mib) {
    let number = |resource| written.get(resource);
    let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let memory = number(Resource::Memory).map(Mib);
    let part = number(Resource::MemoryPercentage).map(|part| scaled.share(Percent(small(part))));
    if let Some(memory) = memory.or(part) {
        grant.memory = Mib(memory.0.saturating_mul(grant.replicas.into()));
    }
    if let Some(cores) = number(Resource::Cores) {
        grant.cores = Percent(small(cores).saturating_mul(grant.replicas));
    }
}

/// The larger of two allocations of the same devices, grant by grant.
fn larger(one: &Allocation, other: &Allocation) -> Allocation {
    let mut both = one.clone();
    for (name, grants) in both.containers.iter_mut().chain(&mut both.init) {
        let others = other.grants(name).unwrap_or_default();
        for (grant, other) in grants.iter_mut().zip(others) {
            grant.memory = grant.memory.max(other.memory);
            grant.cores = grant.cores.max(other.cores);
        }
    }
    both
}

/// The pod's use of each device with this allocation.
pub fn uses(allocation: &Allocation, stages: &[(String, Stage)]) -> DeviceUses {
    let stages = stages.iter().map(|(name, stage)| (name.as_str(), *stage));
    usage::effective(allocation, stages)
}

/// Whether a use is no more than another in any respect.
fn is_within(used: &DeviceUse, other: &DeviceUse) -> bool {
    used.or(*other) == *other
}

/// The most that a pod could use of a device of which it uses `own` now; at least that.
fn fits(device: &DeviceState, own: &DeviceUse) -> (Mib, Percent) {
    let others = &device.allocated.used;
    let cores = device.cores.0.saturating_sub(others.cores.0);
    if device.closed.is_some() || others.alone {
        return (own.memory, own.cores);
    }
    let memory = device.free_memory().max(own.memory);
    (memory, Percent(cores).max(own.cores))
}

/// Why the node may not enforce this in place of what it enforces now: a status may only change the
/// sizes of the pod's own shares, up to its allocation.
pub fn unproven(
    enforced: &Allocation,
    to: &Allocation,
    allocation: &Allocation,
) -> Option<&'static str> {
    let same_devices = |other: &Allocation| {
        let device = |grant: &Grant| Grant {
            memory: Mib(0),
            cores: Percent(0),
            ..grant.clone()
        };
        let plain = |one: &Allocation| {
            let all = one.all().map(|(name, grants)| {
                let grants = grants.iter().map(device);
                (name.to_owned(), grants.collect::<Vec<_>>())
            });
            (one.node.clone(), all.collect::<BTreeMap<_, _>>())
        };
        plain(to) == plain(other)
    };
    if !same_devices(enforced) || !same_devices(allocation) {
        Some("its devices are not those of the pod's allocation")
    } else if larger(allocation, to) != *allocation {
        Some("it is more than the pod's allocation")
    } else {
        None
    }
}
