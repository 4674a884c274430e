//! How long processes were runnable but got no processor, by the kernel's own count in
//! `/proc/PID/task/*/schedstat`. GPU time that a tenant did not use meanwhile says nothing about a
//! limiter. Where the kernel does not count, no wait is assumed.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Nanoseconds that each thread of some processes waited so far.
pub(crate) type Waits = BTreeMap<(u32, String), u64>;

/// The waits of all threads of these processes.
pub(crate) fn waits(pids: impl IntoIterator<Item = u32>) -> Waits {
    let all = pids.into_iter().flat_map(threads);
    all.collect()
}

/// The waits of one process; none if it has ended.
fn threads(pid: u32) -> Vec<((u32, String), u64)> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten();
    let found = tasks.filter_map(|task| {
        let task = task.ok()?;
        let wait = waited(&task.path())?;
        Some(((pid, task.file_name().into_string().ok()?), wait))
    });
    found.collect()
}

/// The second of three numbers: nanoseconds in a queue for a processor.
fn waited(task: &Path) -> Option<u64> {
    let text = fs::read_to_string(task.join("schedstat")).ok()?;
    text.split(' ').nth(1)?.parse().ok()
}

/// Nanoseconds that the thread with the longest wait waited between two samples.
pub(crate) fn longest(before: &Waits, after: &Waits) -> u64 {
    let more = after.iter().map(|(thread, now)| {
        let then = before.get(thread).copied().unwrap_or(0);
        now.saturating_sub(then)
    });
    more.max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_longest_wait_of_any_thread() {
        let waits = |all: &[(&str, u64)]| -> Waits {
            let all = all
                .iter()
                .map(|(name, wait)| ((7, (*name).to_owned()), *wait));
            all.collect()
        };
        let before = waits(&[("1", 100), ("2", 5), ("gone", 9)]);
        let after = waits(&[("1", 130), ("2", 50), ("new", 8)]);
        assert_eq!(longest(&before, &after), 45);
        assert_eq!(longest(&after, &after), 0);
        assert_eq!(longest(&before, &Waits::new()), 0);
    }
}
