//! Ways in which a pod with a share could reach around it: lists, and what each word of a pod is
//! by them.
//!
//! Fed by: the webhook, which refuses them, and `kubectl-aliquot doctor migrate`, which foretells
//! it. Must not: know pods.

pub mod path;

/// Capabilities that open other processes, devices, files of the host or the kernel. `ALL` holds
/// them. `BPF` stands for what it does with `PERFMON`, which alone serves profilers.
pub const CAPABILITIES: [&str; 7] = [
    "ALL",
    "SYS_ADMIN",
    "SYS_PTRACE",
    "SYS_RAWIO",
    "SYS_MODULE",
    "DAC_READ_SEARCH",
    "BPF",
];

/// Those of them with which a container is as good as root of its node.
pub const ROOT: [&str; 2] = ["ALL", "SYS_ADMIN"];

/// Host paths from which a share can be left: devices, CDI, the kubelet, container runtimes and
/// their configuration, static pods, what systemd starts and the buses on which it is told to, the
/// driver of a container, and kernel switches that root of any container can write.
pub const HOST_PATHS: [&str; 26] = [
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
    "/etc/containerd",
    "/etc/crio",
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

/// Host paths with programs that root of the node starts: closed to those who write them.
pub const PROGRAMS: [&str; 5] = ["/usr", "/bin", "/sbin", "/lib", "/lib64"];

/// Below `/dev` but plain shared memory, which many training jobs mount.
pub const HARMLESS: &str = "/dev/shm";

/// Where the node agent keeps its files, unless the chart's values say otherwise.
pub const AGENT_PATHS: [&str; 2] = ["/run/aliquot", "/var/lib/aliquot"];

/// What the node agent mounts into a container with a share.
const OUR_FILES: [&str; 2] = ["/.aliquot", "/etc/ld.so.preload"];

/// Why a host path is closed to a pod with a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed<'a> {
    /// It is a device.
    Device,
    /// It is this path, above it or below it.
    Overlaps(&'a str),
    /// The same, and closed to those who write it only.
    Written(&'a str),
}

/// What becomes of a `hostPath` of this `type` (empty: none is said) that a container mounts for
/// writing, or none does; `agent` is where the node agent keeps its files.
pub fn host_path<'a>(
    path: &str,
    kind: &str,
    is_written: bool,
    agent: impl Iterator<Item = &'a str>,
) -> Option<Closed<'a>> {
    if matches!(kind, "CharDevice" | "BlockDevice") {
        return Some(Closed::Device);
    }
    if path::is_within(path, HARMLESS) {
        return None;
    }
    let overlaps = |closed: &&str| path::overlap(path, closed);
    let closed = HOST_PATHS.into_iter().chain(agent).find(overlaps);
    let program = || PROGRAMS.into_iter().find(overlaps).filter(|_| is_written);
    closed
        .map(Closed::Overlaps)
        .or_else(|| program().map(Closed::Written))
}

/// Who writes this host path is as good as root of the node, as device plugins are, and reaches
/// every GPU by that. Devices below `/dev` are not among these: a mount opens none.
pub fn is_roots<'a>(path: &str, mut agent: impl Iterator<Item = &'a str>) -> bool {
    let mut closed = HOST_PATHS.iter().filter(|closed| **closed != "/dev");
    !path::is_within(path, HARMLESS)
        && (closed.any(|closed| path::overlap(path, closed))
            || agent.any(|closed| path::overlap(path, closed)))
}

/// What is mounted there lies over, above or in this file of ours.
pub fn hides(mount: &str) -> Option<&'static str> {
    let mut ours = OUR_FILES.into_iter();
    ours.find(|ours| path::overlap(mount, ours))
}

/// The capability, in whichever way it is written, is one of these.
pub fn is_one_of(names: &[&str], capability: &str) -> bool {
    let upper = capability.to_ascii_uppercase();
    names.contains(&upper.strip_prefix("CAP_").unwrap_or(&upper))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_path_is_closed_for_everybody_for_writers_or_for_nobody() {
        let agent = || AGENT_PATHS.into_iter();
        for (at, kind, is_written, expected) in [
            ("/data", "CharDevice", false, Some(Closed::Device)),
            ("/dev/shm/x", "", true, None),
            ("/dev/nvidia0", "", false, Some(Closed::Overlaps("/dev"))),
            (
                "/run/dbus/x",
                "Socket",
                false,
                Some(Closed::Overlaps("/run/dbus")),
            ),
            (
                "/run/aliquot",
                "",
                false,
                Some(Closed::Overlaps("/run/aliquot")),
            ),
            ("/usr/lib", "", true, Some(Closed::Written("/usr"))),
            ("/usr/lib", "", false, None),
            ("/data", "Directory", true, None),
        ] {
            let found = host_path(at, kind, is_written, agent());
            assert_eq!(found, expected, "{at} {kind} {is_written}");
        }
        assert!(is_roots("/var/lib/kubelet/device-plugins", agent()));
        assert!(is_roots("/var/lib/aliquot/x", agent()));
        assert!(!is_roots("/dev", agent()) && !is_roots("/usr", agent()));
    }
}
