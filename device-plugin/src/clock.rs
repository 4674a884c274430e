//! The time of day, for what is stored on disk. To measure how long something takes, use
//! [`steady`].

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Seconds since the epoch; 0 on a clock before it.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Seconds since the epoch by a monotonic clock that was set at the first call: a change of the
/// system clock makes no wait longer or shorter.
pub(crate) fn steady() -> u64 {
    static BEGUN: OnceLock<(Instant, u64)> = OnceLock::new();
    let (then, day) = *BEGUN.get_or_init(|| (Instant::now(), now()));
    after(day, then.elapsed())
}

fn after(day: u64, passed: Duration) -> u64 {
    day.saturating_add(passed.as_secs())
}
