//! What a launch of a known function at a new size may cost, from what another size took. A function
//! whose size changes with every launch, as in inference with growing sequences, would otherwise have
//! each first launch measured before the third.
//!
//! The estimate is proportional to the size. That is too much for a larger launch than one that did
//! not fill the device, and it counts only until the launch is measured.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// Nanoseconds.
const MIN_ESTIMATE: u64 = 1_000;
const MAX_ESTIMATE: u64 = 1_000_000_000;
const FUNCTIONS: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The function, or the kind of work.
    pub function: u64,
    /// Its threads or bytes; 0: not known.
    pub amount: u64,
}

impl Extent {
    /// Of work that has no size, such as a graph.
    pub const UNKNOWN: Self = Self {
        function: 0,
        amount: 0,
    };
}

/// The last measured launch of a function.
#[derive(Debug, Default)]
struct MeasuredExtent {
    function: AtomicU64,
    amount: AtomicU64,
    cost: AtomicU64,
}

/// The last measured launches of a process's functions on one device. Of two functions that share a
/// place, the last one is known. Nothing is locked: a lost update costs one estimate.
#[derive(Debug)]
pub struct Scales(Box<[MeasuredExtent]>);

impl Default for Scales {
    fn default() -> Self {
        Self((0..FUNCTIONS).map(|_| MeasuredExtent::default()).collect())
    }
}

impl Scales {
    fn place(&self, function: u64) -> &MeasuredExtent {
        let mixed = function.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        &self.0[usize::try_from(mixed).unwrap_or(0) % FUNCTIONS]
    }

    /// Records what a launch took, in nanoseconds.
    pub fn learn(&self, extent: Extent, cost: u64) {
        if extent.amount == 0 {
            return;
        }
        let place = self.place(extent.function);
        place.amount.store(0, Relaxed);
        place.function.store(extent.function, Relaxed);
        place.cost.store(cost, Relaxed);
        place.amount.store(extent.amount, Relaxed);
    }

    /// What a launch may take, in nanoseconds; `None` if its function was not measured.
    pub fn estimate(&self, extent: Extent) -> Option<u64> {
        let place = self.place(extent.function);
        let amount = place.amount.load(Relaxed);
        let is_known = extent.amount > 0 && amount > 0;
        if !is_known || place.function.load(Relaxed) != extent.function {
            return None;
        }
        let scaled = u128::from(place.cost.load(Relaxed)) * u128::from(extent.amount);
        let estimate = u64::try_from(scaled / u128::from(amount)).unwrap_or(u64::MAX);
        Some(estimate.clamp(MIN_ESTIMATE, MAX_ESTIMATE))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn extent(function: u64, amount: u64) -> Extent {
        Extent { function, amount }
    }

    #[test]
    fn estimates_new_size_of_known_function() {
        let scales = Scales::default();
        assert_eq!(scales.estimate(extent(7, 1000)), None);
        scales.learn(extent(7, 1000), 50_000);
        for (amount, expected) in [
            (1000, Some(50_000)),
            (3000, Some(150_000)),
            (500, Some(25_000)),
            (1, Some(MIN_ESTIMATE)),
            (u64::MAX, Some(MAX_ESTIMATE)),
            (0, None),
        ] {
            assert_eq!(scales.estimate(extent(7, amount)), expected, "{amount}");
        }
        assert_eq!(scales.estimate(extent(8, 1000)), None);
        // The last measurement counts.
        scales.learn(extent(7, 2000), 60_000);
        assert_eq!(scales.estimate(extent(7, 1000)), Some(30_000));
    }

    proptest! {
        #[test]
        fn bounds_estimate_for_any_sizes_and_costs(
            function: u64, known: u64, cost: u64, amount: u64,
        ) {
            let scales = Scales::default();
            scales.learn(extent(function, known), cost);
            let estimate = scales.estimate(extent(function, amount));
            prop_assert_eq!(estimate.is_some(), known > 0 && amount > 0);
            let bounded = |estimate| (MIN_ESTIMATE..=MAX_ESTIMATE).contains(&estimate);
            prop_assert!(estimate.is_none_or(bounded));
        }
    }
}
