//! CPU time and memory of another process, from `/proc`.

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

/// A line of `/proc/PID/status`, in MiB.
pub(crate) fn memory(pid: u32, name: &str) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB"));
    let kib: u32 = kib.with_context(|| format!("no {name}"))?.trim().parse()?;
    Ok(f64::from(kib) / 1024.0)
}
