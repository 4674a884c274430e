//! The time of day, for what is stored on disk. Fed by: the system.
//! Must not: be used to measure how long something takes.

use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since the epoch; 0 on a clock before it.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
