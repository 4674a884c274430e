//! The CPU time of another process, from `/proc`.

use std::time::Duration;

use anyhow::{Context as _, Result};

/// The CPU time of all threads of process `pid` so far (`/proc/PID/task/*/schedstat`, ns).
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
