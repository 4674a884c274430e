//! Shares that cannot get the memory that they requested, because processes outside every share hold
//! it.

use std::collections::BTreeSet;

use crate::evaluation::Evaluation;
use crate::node_sample::NodeSample;

/// A share is short of at least so many bytes when it is reported.
const REPORTED: u64 = 256 << 20;

/// What a share cannot get; sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Index of its container and of the device in it.
    pub at: (usize, usize),
    pub used: u64,
    pub request: u64,
    /// Free on the device.
    pub free: u64,
    /// What processes outside every share hold of the device.
    pub unmanaged: u64,
}

impl Shortage {
    /// What the share lacks of its request because of processes outside every share.
    fn missing(&self) -> u64 {
        let room = self.request.saturating_sub(self.used);
        room.saturating_sub(self.free).min(self.unmanaged)
    }
}

/// The shares that are short of memory, by the ids of their containers and the device's index.
#[derive(Debug, Default)]
pub struct ShortageWatch(BTreeSet<(String, usize)>);

impl ShortageWatch {
    /// The shares whose shortage begins with this sample; `free` returns the bytes that are free on a
    /// device. Host memory backs the shares of an oversubscribed GPU.
    pub fn evaluate(
        &mut self,
        sample: &NodeSample,
        evaluation: &Evaluation,
        free: impl Fn(&str) -> Option<u64>,
    ) -> Vec<Shortage> {
        let unmanaged = evaluation.unmanaged_memory();
        let known = std::mem::take(&mut self.0);
        let mut begun = Vec::new();
        for (at, container) in sample.containers.all.iter().enumerate() {
            let uses = evaluation.uses.get(at).map_or(&[][..], Vec::as_slice);
            for (device, found) in uses.iter().enumerate() {
                let page = sample.page(at, device);
                let uuid = sample.device_uuid(at, device);
                let held = unmanaged.get(uuid).copied().unwrap_or(0);
                // 0: all of its limit.
                let is_backed = (1..page.request).contains(&page.physical);
                if held == 0 || is_backed || !found.is_measured() {
                    continue;
                }
                let Some(free) = free(uuid) else {
                    continue;
                };
                let shortage = Shortage {
                    at: (at, device),
                    used: found.measured,
                    request: page.request,
                    free,
                    unmanaged: held,
                };
                let share = (container.id.clone(), device);
                let is_known = known.contains(&share);
                let missing = shortage.missing();
                if missing >= REPORTED || (is_known && missing > 0) {
                    self.0.insert(share);
                    if !is_known {
                        begun.push(shortage);
                    }
                }
            }
        }
        begun
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::attribution::UnmanagedReason;
    use crate::evaluation::{ContainerUse, UnmanagedProcess};
    use crate::managed_containers::ManagedContainers;
    use crate::node_sample::DevicePage;
    use crate::testing::container;

    const MIB: u64 = 1 << 20;

    /// A share of 40,000 MiB that uses 10,000, beside a process that holds so many for this reason.
    fn shares(reason: UnmanagedReason, held: u64, physical: u64) -> (NodeSample, Evaluation) {
        let page = DevicePage {
            limit: 40_000 * MIB,
            request: 40_000 * MIB,
            physical: physical * MIB,
            overhead: 0,
        };
        let sample = NodeSample {
            containers: Arc::new(ManagedContainers {
                all: vec![container("c1", "u1", "main", &["GPU-a"])],
                ..ManagedContainers::default()
            }),
            pages: vec![vec![page]],
            ..NodeSample::default()
        };
        let evaluation = Evaluation {
            uses: vec![vec![ContainerUse {
                measured: 10_000 * MIB,
                ..ContainerUse::default()
            }]],
            unmanaged: vec![UnmanagedProcess {
                gpu: "GPU-a".to_owned(),
                device: "GPU-a".to_owned(),
                pod: None,
                reason,
                bytes: Some(held * MIB),
            }],
            ..Evaluation::default()
        };
        (sample, evaluation)
    }

    #[test]
    fn reports_share_whose_memory_is_held_outside_every_share() {
        use UnmanagedReason::{Host, LostShare, NoLimiter};
        let check = |reason, held: u64, physical: u64, free: u64, expected: bool| {
            let (sample, evaluation) = shares(reason, held, physical);
            let mut watch = ShortageWatch::default();
            let begun = watch.evaluate(&sample, &evaluation, |_| Some(free * MIB));
            assert_eq!(!begun.is_empty(), expected, "{reason:?} {held} {free}");
        };
        check(Host, 60_000, 0, 11_000, true);
        check(Host, 60_000, 40_000, 11_000, true);
        check(Host, 60_000, 0, 30_000, false);
        // A display holds a little.
        check(Host, 100, 0, 11_000, false);
        // Host memory backs the share.
        check(Host, 60_000, 20_000, 11_000, false);
        for counted in [LostShare, NoLimiter] {
            check(counted, 60_000, 0, 11_000, false);
        }
    }

    #[test]
    fn reports_a_shortage_once_until_it_is_over() {
        let (sample, evaluation) = shares(UnmanagedReason::Host, 60_000, 0);
        let mut watch = ShortageWatch::default();
        let mut begins = |free: u64| {
            let begun = watch.evaluate(&sample, &evaluation, |_| Some(free * MIB));
            begun.len()
        };
        let free = [11_000, 12_000, 29_999, 11_000, 30_000, 11_000];
        assert_eq!(free.map(&mut begins), [1, 0, 0, 0, 0, 1]);
    }
}
