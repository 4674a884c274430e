//! Ways in which a pod with a share could bypass it: capabilities and host paths. The
//! webhook refuses them, and `kubectl aliquot preflight` reports them in advance.

/// Capabilities that give access to other processes, devices, host files or the kernel.
/// `ALL` includes them. `BPF` is listed for what it allows together with `PERFMON`, which
/// alone serves profilers.
pub const CAPABILITIES: [&str; 7] = [
    "ALL",
    "SYS_ADMIN",
    "SYS_PTRACE",
    "SYS_RAWIO",
    "SYS_MODULE",
    "DAC_READ_SEARCH",
    "BPF",
];

/// Those that make a container as powerful as root on its node.
pub const ROOT_CAPABILITIES: [&str; 2] = ["ALL", "SYS_ADMIN"];

/// Host paths through which a share can be bypassed: devices, CDI, the kubelet, container
/// runtimes and their configuration, static pods, systemd and its buses, the driver of a
/// container, and kernel switches that root in any container can write.
pub const HOST_PATHS: [&str; 29] = [
    "/dev",
    "/etc/cdi",
    "/run/cdi",
    "/var/lib/kubelet",
    "/etc/kubernetes",
    "/run/containerd",
    "/var/lib/containerd",
    "/run/k3s",
    "/var/lib/rancher",
    "/run/crio",
    "/run/containers",
    "/var/lib/containers",
    "/etc/containerd",
    "/etc/crio",
    "/etc/containers",
    "/etc/nvidia-container-runtime",
    "/etc/cni",
    "/opt/cni",
    "/etc/systemd",
    "/run/systemd",
    "/run/dbus",
    "/run/nvidia",
    "/etc/docker",
    "/var/lib/docker",
    "/run/docker.sock",
    "/run/dockershim.sock",
    "/run/cri-dockerd.sock",
    "/proc",
    "/sys",
];

/// Host paths with programs that the node's root runs: forbidden only for writing.
pub const PROGRAM_PATHS: [&str; 5] = ["/usr", "/bin", "/sbin", "/lib", "/lib64"];

/// Plain shared memory, although it is below `/dev`: many training jobs mount it.
pub const SHARED_MEMORY: &str = "/dev/shm";

/// Where the node agent stores its files, unless the chart's values differ.
pub const AGENT_PATHS: [&str; 2] = ["/run/aliquot", "/var/lib/aliquot"];

/// What the node agent mounts into a container with a share.
const OUR_FILES: [&str; 2] = ["/.aliquot", "/etc/ld.so.preload"];

/// Why a host path is forbidden for a pod with a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClosedPath<'a> {
    Device,
    /// Equal to, above or below this path.
    Overlaps(&'a str),
    /// The same, and forbidden only for writing.
    Written(&'a str),
}

/// Whether a `hostPath` of this `type` (empty if unset) is forbidden; `agent` gives the
/// node agent's paths.
pub fn host_path<'a>(
    path: &str,
    kind: &str,
    is_written: bool,
    agent: impl Iterator<Item = &'a str>,
) -> Option<ClosedPath<'a>> {
    if matches!(kind, "CharDevice" | "BlockDevice") {
        return Some(ClosedPath::Device);
    }
    if is_within(path, SHARED_MEMORY) {
        return None;
    }
    let overlaps = |closed: &&str| overlap(path, closed);
    let closed = HOST_PATHS.into_iter().chain(agent).find(overlaps);
    let program = || {
        PROGRAM_PATHS
            .into_iter()
            .find(overlaps)
            .filter(|_| is_written)
    };
    closed
        .map(ClosedPath::Overlaps)
        .or_else(|| program().map(ClosedPath::Written))
}

/// Whether writing this host path gives the power of the node's root, as device plugins have it,
/// and so every GPU. A device below `/dev` does not: a mount does not open it.
pub fn grants_root<'a>(path: &str, mut agent: impl Iterator<Item = &'a str>) -> bool {
    let mut closed = HOST_PATHS.iter().filter(|closed| **closed != "/dev");
    !is_within(path, SHARED_MEMORY)
        && (closed.any(|closed| overlap(path, closed)) || agent.any(|closed| overlap(path, closed)))
}

/// The file of the node agent that this mount would cover, if any.
pub fn shadows(mount: &str) -> Option<&'static str> {
    let mut ours = OUR_FILES.into_iter();
    ours.find(|ours| overlap(mount, ours))
}

pub fn is_one_of(names: &[&str], capability: &str) -> bool {
    let upper = capability.to_ascii_uppercase();
    names.contains(&upper.strip_prefix("CAP_").unwrap_or(&upper))
}

/// The components of an absolute path. No file system is read: symbolic links other than
/// `/var/run`, which is `/run` on every node, are not resolved.
fn components(path: &str) -> Vec<&str> {
    let mut components = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                components.pop();
            }
            name => components.push(name),
        }
    }
    if components.starts_with(&["var", "run"]) {
        components.remove(0);
    }
    components
}

/// Whether one path equals or contains the other.
fn overlap(one: &str, other: &str) -> bool {
    let (one, other) = (components(one), components(other));
    one.starts_with(&other) || other.starts_with(&one)
}

/// `path` is `top` or below it.
pub fn is_within(path: &str, top: &str) -> bool {
    components(path).starts_with(&components(top))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classifies_host_paths_by_type_path_and_write_access() {
        let agent = || AGENT_PATHS.into_iter();
        for (at, kind, is_written, expected) in [
            ("/data", "CharDevice", false, Some(ClosedPath::Device)),
            ("/dev/shm/x", "", true, None),
            (
                "/dev/nvidia0",
                "",
                false,
                Some(ClosedPath::Overlaps("/dev")),
            ),
            (
                "/run/dbus/x",
                "Socket",
                false,
                Some(ClosedPath::Overlaps("/run/dbus")),
            ),
            (
                "/run/aliquot",
                "",
                false,
                Some(ClosedPath::Overlaps("/run/aliquot")),
            ),
            ("/usr/lib", "", true, Some(ClosedPath::Written("/usr"))),
            ("/usr/lib", "", false, None),
            ("/data", "Directory", true, None),
        ] {
            let found = host_path(at, kind, is_written, agent());
            assert_eq!(found, expected, "{at} {kind} {is_written}");
        }
        assert!(grants_root("/var/lib/kubelet/device-plugins", agent()));
        assert!(grants_root("/var/lib/aliquot/x", agent()));
        assert!(!grants_root("/dev", agent()) && !grants_root("/usr", agent()));
    }

    #[test]
    fn paths_overlap_when_one_contains_the_other() {
        for (one, other, expected) in [
            ("/dev", "/dev", true),
            ("/", "/dev", true),
            ("/dev/nvidia0", "/dev", true),
            ("//dev/./shm/../nvidia0/", "/dev", true),
            ("/developers", "/dev", false),
            ("/var/run/cdi", "/run/cdi", true),
            ("/var", "/var/lib/kubelet", true),
            ("/var/log", "/var/lib/kubelet", false),
            ("/..", "/dev", true),
        ] {
            assert_eq!(overlap(one, other), expected, "{one} {other}");
        }
        assert!(is_within("/dev/shm/x", "/dev/shm"));
        assert!(!is_within("/dev", "/dev/shm"));
    }
}
