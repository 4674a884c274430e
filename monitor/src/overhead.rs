//! Memory that a container uses beyond what the limiter counts, from two readings of the counters
//! file around one of the driver. Only a difference that lasts raises the charge, and the charge of
//! an earlier monitor stays until this one has samples of its own.

/// Samples in which a higher difference must be seen before it is charged: a second and a half.
const SAMPLES: usize = 3;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemorySample {
    /// Bytes of its processes with a process slot, by the driver.
    pub with_slot: u64,
    /// Bytes of its processes without a process slot, which the limiter does not count.
    pub without_slot: u64,
    /// Bytes in the slots of live processes before the driver was read, without those of processes
    /// whose size it does not report.
    pub counted_before: u64,
    /// The same after it was read.
    pub counted_after: u64,
    pub managed: u64,
    /// Of these, memory that processes imported from others.
    pub imported: u64,
}

impl MemorySample {
    /// Bytes of all its processes, by the driver.
    pub fn measured(&self) -> u64 {
        self.with_slot.saturating_add(self.without_slot)
    }

    fn is_steady(&self) -> bool {
        self.counted_before == self.counted_after
    }

    /// The managed and the imported memory that the driver leaves out: all or nothing of each, so
    /// that what is left of the count is nearest to what it reports.
    fn left_out(&self) -> [u64; 2] {
        let (managed, imported) = (self.managed, self.imported);
        let possible = [[managed, imported], [managed, 0], [0, imported], [0, 0]];
        let difference = |left: &[u64; 2]| self.without(*left).abs_diff(self.with_slot);
        let nearest = possible.into_iter().rev().min_by_key(difference);
        nearest.unwrap_or_default()
    }

    fn without(&self, [managed, imported]: [u64; 2]) -> u64 {
        let left = managed.saturating_add(imported);
        self.counted_after.saturating_sub(left)
    }

    /// Bytes of the processes with a process slot beyond what the limiter counts.
    fn uncounted(&self) -> u64 {
        let reported = self.without(self.left_out());
        self.with_slot.saturating_sub(reported)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recent {
    last: [u64; SAMPLES],
    next: usize,
    number: usize,
}

impl Recent {
    pub fn add(&mut self, value: u64) {
        self.last[self.next] = value;
        self.next = (self.next + 1) % SAMPLES;
        self.number = (self.number + 1).min(SAMPLES);
    }

    /// The least value of the last samples; `None` until there are enough.
    pub fn least(&self) -> Option<u64> {
        let least = self.last.iter().copied().min();
        least.filter(|_| self.number == SAMPLES)
    }

    pub fn most(&self) -> u64 {
        self.last.iter().copied().max().unwrap_or(0)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overhead {
    uncounted: Recent,
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
            self.uncounted.add(sample.uncounted());
        }
        match self.uncounted.least() {
            Some(least) => least.saturating_add(sample.without_slot),
            None => initial.max(sample.without_slot),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steady(with_slot: u64, counted: u64) -> MemorySample {
        MemorySample {
            with_slot,
            counted_before: counted,
            counted_after: counted,
            ..MemorySample::default()
        }
    }

    #[test]
    fn charges_lasting_difference_and_drops_it_at_once() {
        let moving = MemorySample {
            with_slot: 500,
            counted_before: 80,
            counted_after: 400,
            ..MemorySample::default()
        };
        let without_slot = MemorySample {
            without_slot: 70,
            ..steady(80, 80)
        };
        let (mut overhead, mut charged) = (Overhead::default(), 0);
        for (at, (sample, expected)) in [
            (steady(100, 80), 0),
            (steady(100, 80), 0),
            (steady(130, 80), 20),
            (steady(130, 80), 20),
            (steady(130, 80), 50),
            // The counters change.
            (moving, 50),
            (moving, 50),
            (steady(80, 80), 0),
            (without_slot, 70),
            (steady(80, 80), 0),
        ]
        .into_iter()
        .enumerate()
        {
            charged = overhead.update(sample, charged);
            assert_eq!(charged, expected, "{at}: {sample:?}");
        }
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

    /// The charge for a sample that lasts.
    fn lasting(sample: MemorySample) -> u64 {
        let mut overhead = Overhead::default();
        (0..SAMPLES).fold(0, |_, _| overhead.update(sample, 0))
    }

    #[test]
    fn takes_managed_and_imported_memory_out_where_driver_does() {
        let charge = |with_slot: u64, managed: u64| {
            lasting(MemorySample {
                managed,
                imported: 100,
                ..steady(with_slot, 500)
            })
        };
        // Each with 20 beyond the count.
        assert_eq!(charge(520, 0), 20, "the driver reports it of both");
        assert_eq!(charge(420, 0), 20, "only of its creator");
        assert_eq!(
            [520, 420, 320, 220].map(|bytes| charge(bytes, 200)),
            [20; 4]
        );
        assert_eq!([500, 400, 300, 200].map(|bytes| charge(bytes, 200)), [0; 4]);
    }
}
