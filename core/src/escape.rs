//! Ways in which a pod with a share could reach around it, as lists.
//!
//! Fed by: nothing. Read by the webhook, which refuses them, and by `kubectl-aliquot doctor migrate`,
//! which foretells it. Must not: know pods.

/// Capabilities that open other processes, devices or the kernel. `ALL` holds them.
pub const CAPABILITIES: [&str; 4] = ["ALL", "SYS_ADMIN", "SYS_PTRACE", "SYS_RAWIO"];

/// Host paths from which a share can be left: devices, CDI, the kubelet, container
/// runtimes, static pods, and kernel switches that root of any container can write.
pub const HOST_PATHS: [&str; 13] = [
    "/dev",
    "/etc/cdi",
    "/run/cdi",
    "/var/lib/kubelet",
    "/etc/kubernetes",
    "/run/containerd",
    "/var/lib/containerd",
    "/run/crio",
    "/run/docker.sock",
    "/run/dockershim.sock",
    "/run/cri-dockerd.sock",
    "/proc",
    "/sys",
];

/// Below `/dev` but plain shared memory, which many training jobs mount.
pub const HARMLESS: &str = "/dev/shm";
