//! Memory that a container uses beyond what the limiter counts, from two readings of the counters
//! file around one of the driver. Only a difference that lasts raises the charge, and the charge of
//! an earlier monitor stays until this one has samples of its own.

/// Samples in which a higher difference must be seen before it is charged: a second and a half.
const SAMPLES: usize = 3;

/// One sample of a container's memory on one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemorySample {
    /// Bytes of its processes with a process slot, by the driver.
    pub with_slot: u64,
    /// Bytes of its processes without a process slot, which the limiter does not count.
    pub without_slot: u64,
    /// Bytes in the slots of live processes before the driver was read.
    pub counted_before: u64,
    /// The same after it was read.
    pub counted_after: u64,
}

impl MemorySample {
    /// Bytes of all its processes, by the driver.
    pub fn measured(&self) -> u64 {
        self.with_slot.saturating_add(self.without_slot)
    }

    /// Whether the counters did not change meanwhile.
    fn is_steady(&self) -> bool {
        self.counted_before == self.counted_after
    }
}

/// The charge of one container on one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overhead {
    last: [u64; SAMPLES],
    next: usize,
    steady: usize,
    /// The charge at the first sample.
    initial: Option<u64>,
}

impl Overhead {
    /// The bytes to charge after one more sample, where `charged` is the current charge: the least
    /// difference of the last steady samples, plus at once all that the limiter does not count. The
    /// initial charge stays until there are enough samples.
    pub fn update(&mut self, sample: MemorySample, charged: u64) -> u64 {
        let initial = *self.initial.get_or_insert(charged);
        if sample.is_steady() {
            self.last[self.next] = sample.with_slot.saturating_sub(sample.counted_after);
            self.next = (self.next + 1) % SAMPLES;
            self.steady = (self.steady + 1).min(SAMPLES);
        }
        if self.steady < SAMPLES {
            return initial.max(sample.without_slot);
        }
        let least = self.last.iter().copied().min().unwrap_or(0);
        least.saturating_add(sample.without_slot)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn steady(with_slot: u64, counted: u64) -> MemorySample {
        MemorySample {
            with_slot,
            without_slot: 0,
            counted_before: counted,
            counted_after: counted,
        }
    }

    #[test]
    fn charges_lasting_difference_and_drops_it_at_once() {
        let mut overhead = Overhead::default();
        let mut check =
            |sample: MemorySample, expected: u64| assert_eq!(overhead.update(sample, 0), expected);
        check(steady(100, 80), 0);
        check(steady(100, 80), 0);
        check(steady(130, 80), 20);
        check(steady(130, 80), 20);
        check(steady(130, 80), 50);
        check(steady(80, 80), 0);
        check(steady(70, 80), 0);
    }

    #[test]
    fn ignores_difference_while_counters_change() {
        let mut overhead = Overhead::default();
        for _ in 0..3 {
            overhead.update(steady(100, 90), 0);
        }
        let moving = MemorySample {
            with_slot: 500,
            without_slot: 0,
            counted_before: 90,
            counted_after: 400,
        };
        for _ in 0..10 {
            assert_eq!(overhead.update(moving, 10), 10);
        }
    }

    #[test]
    fn charges_processes_without_slot_at_once() {
        let mut overhead = Overhead::default();
        let without_slot = MemorySample {
            without_slot: 70,
            ..steady(100, 100)
        };
        assert_eq!(overhead.update(without_slot, 0), 70);
        assert_eq!(overhead.update(steady(100, 100), 70), 0);
    }

    #[test]
    fn keeps_charge_of_earlier_monitor_until_samples_suffice() {
        let check = |samples: &[(MemorySample, u64)]| {
            let (mut overhead, mut charged) = (Overhead::default(), 60);
            for (sample, expected) in samples {
                charged = overhead.update(*sample, charged);
                assert_eq!(charged, *expected, "{sample:?}");
            }
        };
        let still = steady(140, 80);
        let moving = MemorySample {
            counted_before: 79,
            ..still
        };
        let less = steady(100, 80);
        let without_slot = MemorySample {
            without_slot: 90,
            ..still
        };
        check(&[(still, 60), (still, 60), (still, 60), (less, 20)]);
        check(&[
            (moving, 60),
            (less, 60),
            (moving, 60),
            (less, 60),
            (less, 20),
        ]);
        check(&[(without_slot, 90), (still, 60), (still, 60), (still, 60)]);
    }

    proptest! {
        #[test]
        fn never_charges_more_than_driver_reports(
            samples in proptest::collection::vec((0_u64..100, 0_u64..100, 0_u64..100, 0_u64..50), 1..50)
        ) {
            let mut overhead = Overhead::default();
            let mut most = 0;
            for (with_slot, counted_before, counted_after, without_slot) in samples {
                most = most.max(with_slot.saturating_sub(counted_after));
                let charged = overhead.update(MemorySample { with_slot, without_slot, counted_before, counted_after }, 0);
                prop_assert!(charged <= most + without_slot);
            }
        }
    }
}
