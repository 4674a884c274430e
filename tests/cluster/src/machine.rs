//! What nodes need of the whole machine: kernel settings and a cgroup of their own.
//!
//! Clusters with nodes run side by side. Each holds a shared lock for as long as its node lives;
//! the first one writes down the kernel settings and `down.sh` of the last one restores them.

use std::fs::File;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::ports::{LOCKS, open_lock};

/// What the kubelet needs of cgroup v2.
const CONTROLLERS: [&str; 6] = ["cpu", "cpuset", "hugetlb", "io", "memory", "pids"];

/// Kernel settings that the kubelet and the CNI plugin change for the whole machine.
const SETTINGS: [&str; 6] = [
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/kernel/panic",
    "/proc/sys/kernel/panic_on_oops",
    "/proc/sys/kernel/keys/root_maxkeys",
    "/proc/sys/kernel/keys/root_maxbytes",
    "/proc/sys/net/ipv4/ip_forward",
];

/// The shared lock of one more cluster with nodes. The first one saves the kernel settings
/// for the last one's `down.sh`.
pub(crate) fn join_nodes() -> Result<File> {
    // Between our two locks, and in `down.sh`, no other process may be the first or the last.
    let entry = open_lock("node-entry")?;
    entry.lock().context("lock node-entry")?;
    let nodes = open_lock("node")?;
    match nodes.try_lock() {
        Ok(()) => save_settings()?,
        Err(std::fs::TryLockError::WouldBlock) => {}
        Err(std::fs::TryLockError::Error(error)) => return Err(error).context("lock node"),
    }
    nodes.lock_shared().context("share the lock node")?;
    Ok(nodes)
}

fn save_settings() -> Result<()> {
    let mut lines = Vec::new();
    for file in SETTINGS {
        let value = std::fs::read_to_string(file).with_context(|| format!("read {file}"))?;
        lines.push(format!("{file} {}", value.trim()));
    }
    let path = Path::new(LOCKS).join("sysctl");
    std::fs::write(&path, lines.join("\n") + "\n")
        .with_context(|| format!("write {}", path.display()))
}

/// A cgroup of the node's own in each hierarchy (v1) or in the only one (v2); `name`
/// may lie below another node's.
pub(crate) fn make_cgroups(name: &str) -> Result<()> {
    let mounts = std::fs::read_to_string("/proc/self/mounts")?;
    for line in mounts.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let [_, hierarchy, kind @ ("cgroup" | "cgroup2"), ..] = fields[..] else {
            continue;
        };
        let hierarchy = Path::new(hierarchy);
        if kind == "cgroup2" {
            hand_down_controllers(hierarchy)?;
        }
        let dir = hierarchy.join(name);
        if let Some(above) = dir.parent().filter(|above| *above != hierarchy)
            && kind == "cgroup2"
        {
            hand_down_controllers(above)?;
        }
        std::fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
        for file in ["cpuset.cpus", "cpuset.mems"] {
            if kind == "cgroup" && dir.join(file).exists() {
                std::fs::write(dir.join(file), std::fs::read(hierarchy.join(file))?)?;
            }
        }
    }
    Ok(())
}

/// cgroup v2: children of this one may use those controllers of it that the kubelet
/// needs.
fn hand_down_controllers(group: &Path) -> Result<()> {
    let all = std::fs::read_to_string(group.join("cgroup.controllers"))?;
    let control = group.join("cgroup.subtree_control");
    let on = std::fs::read_to_string(&control)?;
    for controller in all
        .split_whitespace()
        .filter(|name| CONTROLLERS.contains(name))
    {
        if !on.split_whitespace().any(|name| name == controller) {
            std::fs::write(&control, format!("+{controller}"))
                .with_context(|| format!("enable cgroup controller {controller}"))?;
        }
    }
    Ok(())
}
