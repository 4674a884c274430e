//! Why a device or a node cannot take a pod: a closed set, with HAMi's names where HAMi has
//! the reason. The same words appear in the extender's answer, the event, the log and the
//! metrics.

use std::fmt;
use std::sync::Arc;

use crate::quota::QuotaExcess;
use crate::replicas::ReplicaShortage;

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// One reason. The order is that in which reasons are shown.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Reason {
            $($(#[$doc])* $name,)*
        }

        impl Reason {
            /// Every reason, in order.
            pub const ALL: [Self; [$(stringify!($name)),*].len()] = [$(Self::$name),*];

            /// The name shown to users.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }
        }
    };
}

reasons! {
    /// The device is unhealthy.
    CardNotHealth,
    /// An administrator cordoned the device (`hami.io/device-cordon`).
    CardCordoned,
    /// The device is of another model, resource or sharing mode than the pod asks for.
    CardTypeMismatch,
    /// The device's sharing mode cannot give what the pod asks for: amounts on a
    /// time-sliced GPU, or a whole GPU of one that is partitioned.
    GpuModeMismatch,
    /// The GPU is partitioned, but has no instance of the profile that the pod asks for.
    MigProfileMismatch,
    /// Each container may have one share of the device, and this one asks for more.
    GpuStrict,
    /// The pod names devices, and this is none of them (`use-gpuuuid`, `use-gpu`).
    CardUuidMismatch,
    /// The device, or what is free of it, is reserved for pods of other namespaces.
    GpuReserved,
    /// The pod names the device (`use-gpu`), and another pod uses it.
    GpuPinned,
    /// A pod of another device plugin uses the device.
    GpuHeldByForeignPod,
    /// All replicas (`deviceSplitCount`) are allocated.
    CardTimeSlicingExhausted,
    /// The pod wants the device for itself and others use it, or another pod has it for
    /// itself.
    ExclusiveDeviceAllocateConflict,
    /// Not enough free memory.
    CardInsufficientMemory,
    /// Not enough free compute.
    CardInsufficientCore,
    /// There are enough free slices, but at no start that the profile allows.
    MigNoPlacement,
    /// All compute is allocated, so a pod with `gpucores: 0` would get none.
    CardComputeUnitsExhausted,
    /// The device fits, but its NUMA node has too few such devices.
    NumaNotFit,
    /// The node publishes no inventory (no node agent).
    NodeNotRegistered,
    /// The devices fit, but the kubelet offers fewer replicas than the node's pods and this
    /// one request: the device plugin restarts, or replicas are unhealthy.
    NodeInsufficientReplicas,
    /// The node has fewer devices than one container asks for.
    NodeInsufficientDevice,
    /// Some devices fit, but fewer than the pod needs.
    AllocatedCardsInsufficientRequest,
    /// A pod on the node has an unreadable allocation; the node counts as full.
    NodeAllocationUnreadable,
    /// The pod fits on the node, but exceeds a quota of its namespace.
    ResourceQuotaNotFit,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Counted reasons: how many devices (or nodes) refused for each. Shown as `3
/// CardInsufficientMemory, 1 CardNotHealth`, in a fixed order and with bounded length. A
/// quota is shown with its used, requested and allowed amounts; where nodes differ in what
/// the pod would use, the smallest. Of the kubelets with too few replicas, the one that
/// offers the fewest is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusal {
    counts: [u32; Reason::ALL.len()],
    excess: Option<Arc<QuotaExcess>>,
    shortage: Option<Arc<ReplicaShortage>>,
}

/// A refusal for one reason.
impl From<Reason> for Refusal {
    fn from(reason: Reason) -> Self {
        let mut refusal = Self::default();
        refusal.add(reason);
        refusal
    }
}

impl Refusal {
    /// A refusal of one node because of this limit of a quota.
    pub fn quota_exceeded(excess: QuotaExcess) -> Self {
        let mut refusal = Self::from(Reason::ResourceQuotaNotFit);
        refusal.excess = Some(Arc::new(excess));
        refusal
    }

    /// A refusal of one node because its kubelet has too few replicas.
    pub fn replica_shortage(shortage: ReplicaShortage) -> Self {
        let mut refusal = Self::from(Reason::NodeInsufficientReplicas);
        refusal.shortage = Some(Arc::new(shortage));
        refusal
    }

    /// Counts one more device or node.
    pub fn add(&mut self, reason: Reason) {
        self.counts[reason as usize] += 1;
    }

    /// Adds another's counts.
    pub fn merge(&mut self, other: &Self) {
        for (sum, count) in self.counts.iter_mut().zip(other.counts) {
            *sum += count;
        }
        retain_least(&mut self.excess, other.excess.as_ref());
        retain_least(&mut self.shortage, other.shortage.as_ref());
    }

    /// The reasons that occurred, with their counts, in order.
    pub fn counts(&self) -> impl Iterator<Item = (Reason, u32)> {
        Reason::ALL
            .into_iter()
            .zip(self.counts)
            .filter(|&(_, count)| count > 0)
    }

    /// How often `reason` occurred.
    pub fn count(&self, reason: Reason) -> u32 {
        self.counts[reason as usize]
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (reason, count) in self.counts() {
            write!(f, "{separator}{count} {reason}")?;
            match (reason, &self.excess, &self.shortage) {
                (Reason::ResourceQuotaNotFit, Some(excess), _) => write!(f, " ({excess})")?,
                (Reason::NodeInsufficientReplicas, _, Some(shortage)) => {
                    write!(f, " ({shortage})")?;
                }
                _ => {}
            }
            separator = ", ";
        }
        Ok(())
    }
}

/// Retains the smaller of the two.
fn retain_least<T: Ord>(mine: &mut Option<Arc<T>>, theirs: Option<&Arc<T>>) {
    match (&*mine, theirs) {
        (_, None) => {}
        (Some(mine), Some(theirs)) if Arc::ptr_eq(mine, theirs) || mine <= theirs => {}
        (_, theirs) => *mine = theirs.cloned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guide_says_what_helps_against_each_reason() {
        let guide = include_str!("../../docs/guides/why-is-my-pod-pending.md");
        for reason in Reason::ALL {
            let row = format!("\n| `{}` |", reason.name());
            assert!(guide.contains(&row), "no row for {}", reason.name());
        }
    }

    #[test]
    fn reports_kubelet_with_fewest_free_replicas() {
        let shortage = |offered| {
            let resource = "nvidia.com/gpu".into();
            Refusal::replica_shortage(ReplicaShortage { offered, resource })
        };
        let mut refusal = shortage(10);
        for other in [
            Refusal::from(Reason::CardNotHealth),
            shortage(0),
            shortage(4),
        ] {
            refusal.merge(&other);
        }
        let text = "1 CardNotHealth, \
                    3 NodeInsufficientReplicas (the kubelet offers 0 of nvidia.com/gpu)";
        assert_eq!(refusal.to_string(), text);
    }
}
