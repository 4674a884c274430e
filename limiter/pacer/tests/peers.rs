//! Simulates two devices of one container on which kernels wait for each other, as those of
//! collective operations do: each step is a kernel on both devices, which ends when both have had
//! their time.

use std::sync::atomic::AtomicU64;

use aliquot_pacer::bucket::{Bucket, Until};
use aliquot_pacer::cost::{Costs, LaunchSample, Sharing, key};
use aliquot_pacer::rule::Rate;

/// Nanoseconds of work of each kernel.
const OWN: u64 = 5_000_000;

/// One device of the container, and the program that launches on it.
#[derive(Default)]
struct Rank {
    bucket: AtomicU64,
    costs: Costs,
    waited: u64,
    /// Of the last launch: when it was made, what it was charged, and how long the other rank had
    /// waited by then.
    launched: u64,
    charged: u64,
    other: u64,
}

impl Rank {
    /// Learns from the launch that ended at `end`.
    fn learn(&mut self, end: u64, rate: Rate, other: u64) {
        let took = end - self.launched;
        let kernel = self.costs.kernel(key([1, 2, 3]));
        let found = kernel.learn(LaunchSample {
            took,
            sharing: Sharing::ALONE,
            overlapped: false,
            disturbed: false,
            delayed: other - self.other,
        });
        if let Some(found) = found {
            Bucket(&self.bucket).correct_charge(rate, self.charged, found);
            Bucket(&self.bucket).skip(took - found);
        }
    }

    /// Launches as soon as the bucket permits it.
    fn launch(&mut self, requested: u64, rate: Rate) {
        let cost = self.costs.kernel(key([1, 2, 3])).cost();
        let mut now = requested;
        while let Err(Until(when)) = Bucket(&self.bucket).take(now, rate, cost) {
            now = when;
        }
        self.waited += now - requested;
        (self.launched, self.charged) = (now, cost);
    }
}

#[test]
fn keeps_share_of_devices_whose_kernels_wait_for_each_other() {
    for percent in [10, 30, 50, 80] {
        let rate = Rate::new(percent, 1_000_000);
        let mut ranks = [Rank::default(), Rank::default()];
        let (start, steps) = (1 << 40, 400);
        let (mut end, mut widest) = (start, 0);
        for step in 0..steps {
            let before = [ranks[1].waited, ranks[0].waited];
            for (i, late) in [(0, 0), (1, 10_000)] {
                // The program's second thread is a little late, now and then.
                let late = if step % 7 > 0 { 0 } else { late };
                ranks[i].launch(end + late, rate);
            }
            let [one, two] = [ranks[0].launched, ranks[1].launched];
            let begun = one.max(two);
            widest = widest.max(begun - one.min(two));
            end = begun + OWN;
            // The rank that launched first did so before the other's wait was over and reported.
            let now = [ranks[1].waited, ranks[0].waited];
            for (i, rank) in ranks.iter_mut().enumerate() {
                let first = rank.launched < begun;
                rank.other = if first { before[i] } else { now[i] };
                rank.learn(end, rate, now[i]);
            }
        }
        let step = OWN * 100 / u64::from(percent);
        assert!(widest <= step / 4, "{percent} %: {widest} of {step} apart");
        let fair = steps * step;
        let took = end - start;
        assert!(took < fair * 11 / 10, "{percent} %: {took} of {fair}");
        assert!(took > fair * 9 / 10, "{percent} %: {took} of {fair}");
    }
}
