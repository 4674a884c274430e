//! Why a pod may not start, in words that say what its user should do.
//!
//! Fed by: [`super`]. Must not: decide.

use std::fmt;

use aliquot_core::inventory::Mode;
use aliquot_core::usage::Use;
use aliquot_core::{Gpu, GpuUuid, Mib, NodeName, Percent, PodUid, Reason};

mod by_env;

pub use by_env::ByEnv;

/// Why a pod may not start, with what its user should do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The API server has no such pod here.
    Unknown(PodUid),
    /// A static pod.
    Static(String),
    /// Bound past the scheduler.
    NoAllocation(String),
    /// The annotation cannot be read.
    Unreadable(String, String),
    /// Bound to another node than its allocation says.
    OtherNode(NodeName),
    /// The allocation has nothing for this container.
    NoShare(String),
    /// The kubelet gave another number of seats than the allocation has cards.
    Count {
        /// The container.
        container: String,
        /// Cards in its allocation.
        granted: usize,
        /// Seats in the checkpoint.
        held: usize,
    },
    /// The allocation names a card that is not here.
    NoCard(GpuUuid),
    /// A client of MPS sees one unit, and the container was given more.
    BesideMps(String, GpuUuid),
    /// Without CDI the container was told something else than it was given.
    ByEnv(ByEnv),
    /// Nobody knows what a pod of HAMi holds here.
    HamiUnreadable(PodUid),
    /// Nobody knows what a pod that was accepted here holds.
    ShareUnreadable(PodUid),
    /// The card is shared in another way than when the pod was bound.
    Shared {
        /// The card.
        gpu: GpuUuid,
        /// How it is shared now.
        mode: Mode,
        /// What the pod was given of it.
        given: (Mib, Percent),
    },
    /// The card is not usable.
    Sick(GpuUuid, String),
    /// The card is between two modes.
    Changing(GpuUuid, String),
    /// The card cannot carry this beside what was accepted before.
    Full {
        /// The card.
        gpu: GpuUuid,
        /// Why.
        reason: Reason,
        /// What the pod was given of it.
        wanted: Use,
        /// What others hold of it.
        held: Use,
        /// What it has.
        has: Box<Gpu>,
    },
}

const AGAIN: &str = "delete the pod and create it again with `schedulerName: aliquot-scheduler` and without `spec.nodeName`";

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(uid) => write!(
                f,
                "the API server has no pod with uid {uid} on this node: a static pod cannot ask for a share of a GPU, because it does not pass the scheduler; run it as a Deployment or DaemonSet with `schedulerName: aliquot-scheduler`"
            ),
            Self::Static(pod) => write!(
                f,
                "{pod} is a static pod, which does not pass the scheduler and so cannot have a share of a GPU; run it as a Deployment or DaemonSet with `schedulerName: aliquot-scheduler`"
            ),
            Self::NoAllocation(pod) => write!(
                f,
                "{pod} was bound to this node without a share of a GPU (no annotation aliquot.dev/allocation): {AGAIN}"
            ),
            Self::Unreadable(pod, why) => write!(
                f,
                "the annotation aliquot.dev/allocation of {pod} cannot be used ({why}): {AGAIN}"
            ),
            Self::OtherNode(node) => write!(
                f,
                "the pod's allocation is for node {node}, but the pod is on another: {AGAIN}"
            ),
            Self::NoShare(container) => write!(
                f,
                "the pod's allocation has no share for container {container}: {AGAIN}"
            ),
            Self::Count {
                container,
                granted,
                held,
            } => write!(
                f,
                "container {container} was given {granted} GPU(s), but the kubelet reserved {held} seat(s) for it: {AGAIN}"
            ),
            Self::NoCard(gpu) => write!(
                f,
                "the pod was given {gpu}, which is not on this node any more: delete the pod and create it again"
            ),
            Self::BesideMps(container, unit) => write!(
                f,
                "container {container} was given a share of {unit}, which is shared by MPS, and another GPU: a client of MPS sees its daemon's GPU only; give each GPU a container of its own"
            ),
            Self::ByEnv(why) => why.fmt(f),
            Self::HamiUnreadable(pod) => write!(
                f,
                "the pod with uid {pod} was placed here by HAMi, and its annotation hami.io/vgpu-devices-allocated cannot be read, so nobody knows what is free: ask your administrator to delete that pod"
            ),
            Self::ShareUnreadable(pod) => write!(
                f,
                "what the pod with uid {pod} was given here cannot be read back, neither from the agent's store nor from its annotation, so nobody knows what is free: ask your administrator to delete that pod"
            ),
            Self::Shared {
                gpu,
                mode: Mode::Timeslice,
                given: (memory, cores),
            } => write!(
                f,
                "the pod was given {memory} and {cores} compute of {gpu}, which is shared in turns now (timeslice) and keeps no amount for anybody: delete the pod and create it again"
            ),
            Self::Shared { gpu, .. } => write!(
                f,
                "the pod was given a turn of {gpu}, which is shared by amounts now: delete the pod and create it again"
            ),
            Self::Sick(gpu, why) => write!(
                f,
                "the pod was given {gpu}, which is not usable now ({why}): wait for the GPU to recover, or delete the pod and create it again"
            ),
            Self::Changing(gpu, how) => write!(
                f,
                "the pod was given {gpu}, which {how}: delete the pod and create it again"
            ),
            Self::Full {
                gpu,
                reason,
                wanted,
                held,
                has,
            } => write!(
                f,
                "{gpu} cannot carry this pod ({reason}): it needs {} with {} compute, others hold {} of {} with {} compute in {} of {} seats: delete the pod and create it again",
                wanted.memory,
                wanted.cores,
                held.memory,
                has.scaled,
                held.cores,
                held.seats,
                has.seats
            ),
        }
    }
}
