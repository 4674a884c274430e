//! Time on a CPU that a process has taken, from `/proc`.
//!
//! Must not: be asked about this process; what asks is not what is measured.

use std::time::Duration;

use anyhow::{Context as _, Result};

/// Of all threads of this process so far (`/proc/PID/task/*/schedstat`, ns).
pub(crate) fn spent(pid: u32) -> Result<Duration> {
    let mut sum = Duration::ZERO;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = std::fs::read_to_string(thread?.path().join("schedstat"))?;
        let nanos = text
            .split_whitespace()
            .next()
            .context("schedstat has three numbers")?;
        sum += Duration::from_nanos(nanos.parse()?);
    }
    Ok(sum)
}
