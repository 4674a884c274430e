//! Process ids across pid namespaces, translated from `/proc` as the kernel's part of a driver
//! would: from the id that a process sees as its own to the one under which the reader sees it.

use std::fs;
use std::path::Path;

/// The inode of this process's pid namespace; 0 when `/proc` does not say.
#[must_use]
pub fn own_namespace() -> u64 {
    namespace_of(Path::new("/proc/self"))
}

fn namespace_of(process: &Path) -> u64 {
    let link = fs::read_link(process.join("ns/pid")).ok();
    let text = link.as_deref().and_then(Path::to_str).unwrap_or_default();
    let inner = text.strip_prefix("pid:[").and_then(|t| t.strip_suffix(']'));
    inner.and_then(|inode| inode.parse().ok()).unwrap_or(0)
}

/// The reader's id of the process that calls itself `pid` in `namespace`; `None` when it cannot
/// see that process.
#[must_use]
pub fn as_seen_here(pid: u32, namespace: u64) -> Option<u32> {
    if namespace == 0 || namespace == own_namespace() {
        return Some(pid);
    }
    let seen = fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| {
        let seen: u32 = entry.file_name().to_str()?.parse().ok()?;
        let status = fs::read_to_string(entry.path().join("status")).ok()?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("NSpid:"))?;
        let innermost: u32 = line.split_whitespace().last()?.parse().ok()?;
        (innermost == pid && namespace_of(&entry.path()) == namespace).then_some(seen)
    });
    seen.into_iter().next()
}

/// No process of our namespace has this id, or it is a zombie. A process
/// whose first thread ended lives on in its other threads.
pub(crate) fn has_ended(pid: u64) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return true;
    };
    let files = threads.flatten().map(|thread| thread.path().join("stat"));
    let mut threads = files.filter_map(|file| fs::read_to_string(file).ok());
    !threads.any(|stat| {
        let state = stat
            .rsplit_once(')')
            .map_or("", |(_, rest)| rest.trim_start());
        !state.starts_with(['Z', 'X'])
    })
}
