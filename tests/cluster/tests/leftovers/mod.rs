//! What a cluster may have left on the machine, found independently of how it is taken down.

use std::fs;
use std::path::Path;

use aliquot_cluster::Cluster;
use anyhow::{Result, ensure};

/// Processes and mounts (in any mount namespace) that name `state`, and cgroups named after it.
/// Zombies count as ended.
pub(crate) fn of(state: &Path) -> Vec<String> {
    let text = state.to_str().expect("only plain paths are accepted");
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").expect("/proc is mounted").flatten() {
        let pid = entry.file_name().to_string_lossy().into_owned();
        if !pid.bytes().all(|b| b.is_ascii_digit()) || pid == std::process::id().to_string() {
            continue;
        }
        for file in ["cmdline", "environ", "mountinfo"] {
            let content = fs::read(entry.path().join(file)).unwrap_or_default();
            let content = String::from_utf8_lossy(&content).replace('\0', " ");
            let lines = content.lines().filter(|line| line.contains(text));
            found.extend(lines.map(|line| format!("process {pid}, {file}: {line}")));
        }
    }
    let name = state.file_name().expect("a state folder has a name");
    let cgroup = format!("aliquot-{}", name.display());
    for root in fs::read_dir("/sys/fs/cgroup")
        .expect("cgroups are mounted")
        .flatten()
    {
        let (v1, v2) = (root.path().join(&cgroup), root.file_name() == *cgroup);
        if v1.exists() || v2 {
            found.push(format!("cgroup {cgroup} in {}", root.path().display()));
        }
    }
    found
}

/// The index of the machine's end of a pod's network interface.
#[allow(dead_code, reason = "used by the tests with a node only")]
pub(crate) async fn interface_of(cluster: &Cluster, pod: &str) -> Result<u32> {
    let read = ["cat", "/sys/class/net/eth0/iflink"];
    let index = cluster.exec("default", pod, "main", &read).await?;
    let index = index.success()?.trim().parse()?;
    ensure!(has_interface(index), "{pod}: no interface {index}");
    Ok(index)
}

/// Whether the machine has a network interface of this index; it gives none twice.
#[allow(dead_code, reason = "used by the tests with a node only")]
pub(crate) fn has_interface(index: u32) -> bool {
    let mut interfaces = fs::read_dir("/sys/class/net")
        .expect("/sys is mounted")
        .flatten();
    interfaces.any(|entry| {
        let own = fs::read_to_string(entry.path().join("ifindex"));
        own.is_ok_and(|own| own.trim() == index.to_string())
    })
}
