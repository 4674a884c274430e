//! How much work a stream may have in progress. Work that is on the device cannot be taken back: a
//! deep queue would run on when other tenants start, and a container whose launches the device
//! delays would be charged for work that is not done.

/// Measured launches that a stream may have in progress beside other tenants: enough to keep the
/// device busy while the program sleeps.
const SHORT_LAUNCHES: usize = 4;
/// The same for launches that take longer than [`LONG`].
const LONG_LAUNCHES: usize = 2;
/// Nanoseconds.
const LONG: u64 = 4_000_000;
/// The same for a container alone on the device.
const LAUNCHES_ALONE: usize = 16;
/// Nanoseconds of work that a container alone on the device may have in progress beyond
/// [`SHORT_LAUNCHES`].
const QUEUED_ALONE: u64 = 50_000_000;

#[derive(Clone, Copy, Debug)]
pub struct StreamQueue {
    pub launches: usize,
    /// Nanoseconds that all launched work of the container is expected to take from now on.
    pub queued: u64,
    pub sharing: u32,
}

impl StreamQueue {
    /// Whether a launch of this cost waits until an earlier one is done.
    pub fn is_full(self, cost: u64) -> bool {
        let most = match self {
            _ if self.sharing > 1 && cost > LONG => LONG_LAUNCHES,
            _ if self.sharing > 1 || self.queued > QUEUED_ALONE => SHORT_LAUNCHES,
            _ => LAUNCHES_ALONE,
        };
        self.launches >= most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_work_in_progress_by_tenants_and_length() {
        let short = 1_000_000;
        for (sharing, cost, queued, expected) in [
            (2, short, 0, 4),
            (2, 50_000_000, 0, 2),
            (1, short, 0, 16),
            (1, 50_000_000, 60_000_000, 4),
        ] {
            let is_full = |launches| {
                let queue = StreamQueue {
                    launches,
                    queued,
                    sharing,
                };
                queue.is_full(cost)
            };
            let most = (0..20).find(|launches| is_full(*launches));
            assert_eq!(most, Some(expected), "{sharing} {cost}");
        }
    }
}
