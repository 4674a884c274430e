//! Ways in which a pod with a share could reach around it, as lists.
//!
//! Fed by: nothing. Read by the webhook, which refuses them, and by `kubectl-aliquot doctor migrate`,
//! which foretells it. Must not: know pods.

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
/// their configuration, static pods, what systemd starts, and kernel switches that root of any
/// container can write.
pub const HOST_PATHS: [&str; 21] = [
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
