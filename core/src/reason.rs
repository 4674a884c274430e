//! Why a card or a node cannot take a pod: a closed set, with the names that
//! HAMi's users know where they exist (reference: HAMi's `Fit`).
//!
//! Fed by: [`crate::fit`], and [`crate::quota`] for the limits of a namespace.
//! Must not: carry free text; the words are the same in the extender's answer,
//! the event, the log and the metrics.

use std::fmt;
use std::sync::Arc;

use crate::quota::Over;
use crate::seats::Short;

/// One reason. The order is the order in which they are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// The driver says that the card is not usable.
    CardNotHealth,
    /// An administrator took the card out (`hami.io/device-cordon`).
    CardCordoned,
    /// The card is shared in another way than the pod asks for.
    CardTypeMismatch,
    /// The way in which the card is shared cannot give what the pod wrote: amounts
    /// on a card in turns, a whole one of those that are cut.
    CardModeMismatch,
    /// The card is cut, and not into instances of the profile that the pod asks for.
    CardMigProfileMismatch,
    /// Each container may have one share of the card, and this one asks for more.
    CardStrict,
    /// The pod names cards, and this is none of them (`use-gpuuuid`, `use-gpu`).
    CardUuidMismatch,
    /// It, or what is left of it, is kept for pods of other namespaces.
    CardReserved,
    /// The pod names it (`use-gpu`), and somebody else holds it.
    CardPinned,
    /// Another plugin's pod holds the card.
    CardHeldByForeignPod,
    /// All seats (`deviceSplitCount`) are taken.
    CardTimeSlicingExhausted,
    /// The pod wants a card alone or idle and it is not, or the card is somebody's alone.
    ExclusiveDeviceAllocateConflict,
    /// Not enough memory left.
    CardInsufficientMemory,
    /// Not enough compute left.
    CardInsufficientCore,
    /// There are free slices enough, but at no start that the profile may have.
    CardMigNoPlacement,
    /// All compute is promised, so a pod with `gpucores: 0` would get none.
    CardComputeUnitsExhausted,
    /// The card would do, but its NUMA node has too few such cards.
    NumaNotFit,
    /// The node publishes no inventory (no agent, or not ours).
    NodeNotRegistered,
    /// HAMi's plugin serves the node; none of ours is there.
    NodeServedByHami,
    /// The cards would do, and the kubelet offers fewer seats than the pods of the node
    /// and this one request: its agent restarts, or seats are unhealthy.
    NodeInsufficientSeats,
    /// The node has fewer cards than one container asks for.
    NodeInsufficientDevice,
    /// Some cards fit, but fewer than the pod needs.
    AllocatedCardsInsufficientRequest,
    /// A pod on the node has an allocation that cannot be read; the node counts as full.
    NodeAllocationUnreadable,
    /// The pod fits on the node, and its namespace's quota has no room for it.
    ResourceQuotaNotFit,
}

impl Reason {
    /// Every reason, in order.
    pub const ALL: [Self; 24] = [
        Self::CardNotHealth,
        Self::CardCordoned,
        Self::CardTypeMismatch,
        Self::CardModeMismatch,
        Self::CardMigProfileMismatch,
        Self::CardStrict,
        Self::CardUuidMismatch,
        Self::CardReserved,
        Self::CardPinned,
        Self::CardHeldByForeignPod,
        Self::CardTimeSlicingExhausted,
        Self::ExclusiveDeviceAllocateConflict,
        Self::CardInsufficientMemory,
        Self::CardInsufficientCore,
        Self::CardMigNoPlacement,
        Self::CardComputeUnitsExhausted,
        Self::NumaNotFit,
        Self::NodeNotRegistered,
        Self::NodeServedByHami,
        Self::NodeInsufficientSeats,
        Self::NodeInsufficientDevice,
        Self::AllocatedCardsInsufficientRequest,
        Self::NodeAllocationUnreadable,
        Self::ResourceQuotaNotFit,
    ];

    /// The name as users see it.
    pub fn name(self) -> &'static str {
        match self {
            Self::CardNotHealth => "CardNotHealth",
            Self::CardCordoned => "CardCordoned",
            Self::CardTypeMismatch => "CardTypeMismatch",
            Self::CardModeMismatch => "CardModeMismatch",
            Self::CardMigProfileMismatch => "CardMigProfileMismatch",
            Self::CardStrict => "CardStrict",
            Self::CardUuidMismatch => "CardUuidMismatch",
            Self::CardReserved => "CardReserved",
            Self::CardPinned => "CardPinned",
            Self::CardHeldByForeignPod => "CardHeldByForeignPod",
            Self::CardTimeSlicingExhausted => "CardTimeSlicingExhausted",
            Self::ExclusiveDeviceAllocateConflict => "ExclusiveDeviceAllocateConflict",
            Self::CardInsufficientMemory => "CardInsufficientMemory",
            Self::CardInsufficientCore => "CardInsufficientCore",
            Self::CardMigNoPlacement => "CardMigNoPlacement",
            Self::CardComputeUnitsExhausted => "CardComputeUnitsExhausted",
            Self::NumaNotFit => "NumaNotFit",
            Self::NodeNotRegistered => "NodeNotRegistered",
            Self::NodeServedByHami => "NodeServedByHami",
            Self::NodeInsufficientSeats => "NodeInsufficientSeats",
            Self::NodeInsufficientDevice => "NodeInsufficientDevice",
            Self::AllocatedCardsInsufficientRequest => "AllocatedCardsInsufficientRequest",
            Self::NodeAllocationUnreadable => "NodeAllocationUnreadable",
            Self::ResourceQuotaNotFit => "ResourceQuotaNotFit",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Counted reasons: how many cards (or nodes) were refused for each. Shown as
/// `3 CardInsufficientMemory, 1 CardNotHealth`, in a fixed order and of bounded
/// length however many were counted. A quota is named with what is used, asked
/// and allowed; where nodes differ in what the pod would take, the least of it. Of
/// kubelets with too few seats, the one that offers least is told of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusal {
    counts: [u32; Reason::ALL.len()],
    over: Option<Arc<Over>>,
    short: Option<Arc<Short>>,
}

impl Refusal {
    /// A refusal for one reason.
    pub fn of(reason: Reason) -> Self {
        let mut refusal = Self::default();
        refusal.add(reason);
        refusal
    }

    /// A refusal of one node for this limit of a quota.
    pub fn over(over: Over) -> Self {
        let mut refusal = Self::of(Reason::ResourceQuotaNotFit);
        refusal.over = Some(Arc::new(over));
        refusal
    }

    /// A refusal of one node whose kubelet has too few seats.
    pub fn short(short: Short) -> Self {
        let mut refusal = Self::of(Reason::NodeInsufficientSeats);
        refusal.short = Some(Arc::new(short));
        refusal
    }

    /// Counts one more card or node.
    pub fn add(&mut self, reason: Reason) {
        self.counts[reason as usize] += 1;
    }

    /// Adds another's counts.
    pub fn merge(&mut self, other: &Self) {
        for (sum, count) in self.counts.iter_mut().zip(other.counts) {
            *sum += count;
        }
        keep_least(&mut self.over, other.over.as_ref());
        keep_least(&mut self.short, other.short.as_ref());
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

    /// The limit of a quota that the pod would pass, if that is among the reasons.
    pub fn over_quota(&self) -> Option<&Over> {
        self.over.as_deref()
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (reason, count) in self.counts() {
            write!(f, "{separator}{count} {reason}")?;
            match (reason, &self.over, &self.short) {
                (Reason::ResourceQuotaNotFit, Some(over), _) => write!(f, " ({over})")?,
                (Reason::NodeInsufficientSeats, _, Some(short)) => write!(f, " ({short})")?,
                _ => {}
            }
            separator = ", ";
        }
        Ok(())
    }
}

/// The lesser of the two stays.
fn keep_least<T: Ord>(mine: &mut Option<Arc<T>>, theirs: Option<&Arc<T>>) {
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
    fn the_list_of_all_reasons_is_in_the_order_of_their_numbers() {
        for (position, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, position, "{reason}");
        }
    }

    #[test]
    fn counts_are_shown_in_a_fixed_order() {
        let mut refusal = Refusal::of(Reason::NodeNotRegistered);
        refusal.add(Reason::CardNotHealth);
        refusal.merge(&Refusal::of(Reason::CardNotHealth));
        assert_eq!(refusal.to_string(), "2 CardNotHealth, 1 NodeNotRegistered");
    }

    #[test]
    fn of_kubelets_with_too_few_seats_the_one_with_least_is_told_of() {
        let short = |offered| {
            let resource = "nvidia.com/gpu".into();
            Refusal::short(Short { offered, resource })
        };
        let mut refusal = short(10);
        for other in [Refusal::of(Reason::CardNotHealth), short(0), short(4)] {
            refusal.merge(&other);
        }
        let told = "1 CardNotHealth, \
                    3 NodeInsufficientSeats (the kubelet offers 0 of nvidia.com/gpu)";
        assert_eq!(refusal.to_string(), told);
    }
}
