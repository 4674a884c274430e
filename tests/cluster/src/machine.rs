//! What a node asks of the whole machine: its turn, kernel settings, a cgroup.
//! What it must not do: change anything that `down.sh` does not put back.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::layout::Layout;
use crate::ports::{lock_owner, try_lock};
use crate::wait::eventually;

/// How long a second cluster with a node waits for the first.
const TURN: Duration = Duration::from_mins(15);

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

/// Waits for this machine's turn to run a node.
pub(crate) async fn lock(layout: &Layout) -> Result<File> {
    eventually(TURN, "the machine's only node to be free", || async {
        match try_lock("node", layout.root())? {
            Some(lock) => Ok(Some(lock)),
            None => bail!("the cluster in {} has it", lock_owner("node")),
        }
    })
    .await
}

/// Writes down the kernel settings for `down.sh` to restore.
pub(crate) fn save_settings(layout: &Layout) -> Result<()> {
    let mut lines = Vec::new();
    for file in SETTINGS {
        let value = std::fs::read_to_string(file).with_context(|| format!("read {file}"))?;
        lines.push(format!("{file} {}", value.trim()));
    }
    Ok(std::fs::write(
        layout.at("run/sysctl"),
        lines.join("\n") + "\n",
    )?)
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
                .with_context(|| format!("hand down cgroup controller {controller}"))?;
        }
    }
    Ok(())
}
