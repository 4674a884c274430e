//! Memory that a container uses beyond what the limiter counts, from two readings of the counters
//! file around one of the driver. Only a difference that lasts raises the charge, and the charge of
//! an earlier monitor stays until this one has samples of its own.

/// Samples in which a higher difference must be seen before it is charged: a second and a half.
const SAMPLES: usize = 3;
/// Samples in a row during each of which the count changed, after which what they have in common is
/// charged: ten seconds.
const UNSTEADY_SAMPLES: usize = 20;

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

    /// Bytes of the processes with a process slot beyond what the limiter counts: `counted`.
    fn beyond(&self, counted: u64) -> u64 {
        let sample = Self {
            counted_after: counted,
            ..*self
        };
        let reported = sample.without(sample.left_out());
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
    fn all(value: u64) -> Self {
        Self {
            last: [value; SAMPLES],
            next: 0,
            number: SAMPLES,
        }
    }

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

/// Samples in a row during each of which the count changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Unsteady {
    number: usize,
    /// The differences that all of them allow, from and to.
    range: [u64; 2],
}

impl Unsteady {
    /// Adds a sample that allows these differences; what all of them allow, once there are enough.
    fn add(&mut self, [least, most]: [u64; 2]) -> Option<[u64; 2]> {
        let range = if self.number == 0 {
            [least, most]
        } else {
            [self.range[0].min(least), self.range[1].min(most)]
        };
        if self.number + 1 == UNSTEADY_SAMPLES {
            *self = Self::default();
            return Some(range);
        }
        (self.number, self.range) = (self.number + 1, range);
        None
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overhead {
    uncounted: Recent,
    unsteady: Unsteady,
    /// The charge at the first sample.
    initial: Option<u64>,
}

impl Overhead {
    /// The bytes to charge after one more sample, where `charged` is the current charge: the least
    /// difference of the last steady samples, plus at once all that the limiter does not count. The
    /// initial charge stays until there are enough samples. Where none is steady, because a program
    /// allocates and frees all the time, the charge is kept within what all of them allow.
    pub fn update(&mut self, sample: MemorySample, charged: u64) -> u64 {
        let initial = *self.initial.get_or_insert(charged);
        let (before, after) = (sample.counted_before, sample.counted_after);
        if sample.is_steady() {
            self.uncounted.add(sample.beyond(after));
            self.unsteady = Unsteady::default();
        } else {
            let allowed = [before.max(after), before.min(after)].map(|count| sample.beyond(count));
            if let Some([least, most]) = self.unsteady.add(allowed) {
                let known = self.uncounted.least().unwrap_or(initial);
                self.uncounted = Recent::all(known.max(least).min(most));
            }
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

    #[test]
    fn charges_common_part_of_changing_counts_after_10_s() {
        let mut overhead = Overhead::default();
        let mut charge_after = |with_slot, counts: [[u64; 2]; 2]| {
            let samples = counts.into_iter().cycle().take(UNSTEADY_SAMPLES);
            let charges = samples.map(|[counted_before, counted_after]| {
                let sample = MemorySample {
                    with_slot,
                    counted_before,
                    counted_after,
                    ..MemorySample::default()
                };
                overhead.update(sample, 0)
            });
            let charges: Vec<u64> = charges.collect();
            let (last, earlier) = charges.split_last().expect("some");
            assert!(earlier.iter().all(|charge| *charge == earlier[0]));
            *last
        };
        assert_eq!(charge_after(500, [[80, 82], [81, 80]]), 418);
        // What held most of it ended, and the other process goes on.
        assert_eq!(charge_after(100, [[80, 81], [82, 80]]), 20);
        assert_eq!(charge_after(100, [[40, 95], [95, 60]]), 20, "it may be so");
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
