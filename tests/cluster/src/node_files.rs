//! The node's configuration files: containerd, CNI, kubelet. Pure text and values.

use std::path::Path;

use serde_json::{Value, json};

use crate::layout::Layout;
use crate::ports::Ports;

/// The image of the pods' sandboxes.
pub(crate) const PAUSE_IMAGE: &str = "localhost/pause:1";
/// The image that tests run: busybox with all its commands.
pub(crate) const BUSYBOX_IMAGE: &str = "localhost/busybox:1";
/// The runtime for pods with a user namespace of their own.
pub const USERS: &str = "users";
/// Where Debian puts the CNI plugins.
const CNI_PLUGINS: &str = "/usr/lib/cni";

/// containerd's configuration (version 3: read by every containerd 2).
/// `restrict_oom_score_adj`: works without `CAP_SYS_RESOURCE`. `users` is the runc of the
/// second runtime, which only pods with a user namespace of their own name.
pub(crate) fn containerd(layout: &Layout, binaries: &str, users: Option<&Path>) -> String {
    let dir = layout.text("containerd");
    let cni = layout.text("cni");
    let cdi = layout.text("cdi");
    let further = users.map(|runc| {
        format!(
            r#"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.{USERS}]
runtime_type = "io.containerd.runc.v2"
runtime_path = "{binaries}/containerd-shim-runc-v2"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.{USERS}.options]
BinaryName = "{}"
Root = "{dir}/runc-{USERS}"
SystemdCgroup = false
"#,
            runc.display()
        )
    });
    let further = further.unwrap_or_default();
    format!(
        r#"version = 3
root = "{dir}/root"
state = "{dir}/state"
imports = []
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.image-verifier.v1.bindir", "io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.erofs", "io.containerd.snapshotter.v1.blockfile", "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"]

[grpc]
address = "{dir}/c.sock"

[ttrpc]
address = "{dir}/c.sock.ttrpc"

[plugins.'io.containerd.cri.v1.images']
snapshotter = "overlayfs"

[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{PAUSE_IMAGE}"

[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
enable_unprivileged_ports = false
enable_unprivileged_icmp = false
cdi_spec_dirs = ["{cdi}"]

[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["{CNI_PLUGINS}"]
conf_dir = "{cni}"
use_internal_loopback = true

[plugins.'io.containerd.cri.v1.runtime'.containerd]
default_runtime_name = "runc"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
runtime_path = "{binaries}/containerd-shim-runc-v2"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
Root = "{dir}/runc"
SystemdCgroup = false
{further}"#
    )
}

/// One point-to-point link for each pod, no masquerading: no iptables rule is made.
/// `n` is 0 for the first node.
pub(crate) fn cni(layout: &Layout, ports: Ports) -> Value {
    json!({
        "cniVersion": "1.0.0",
        "name": "local",
        "plugins": [{
            "type": "ptp",
            "ipMasq": false,
            "ipam": {
                "type": "host-local",
                "subnet": format!("10.{}.0.0/24", ports.subnet()),
                "dataDir": layout.text("cni/leases"),
                // Addresses of Services lead to the node.
                "routes": [{"dst": "10.96.0.0/16"}],
            },
        }],
    })
}

/// The kubelet's configuration. Its root is `/var/lib/kubelet` of its own mount
/// namespace, which is `kubelet/` of the state folder from outside.
/// `health` is 0 if it is not used.
pub(crate) fn kubelet(layout: &Layout, (port, health): (u16, u16), cgroup: &str) -> Value {
    let pki = layout.text("pki");
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": "127.0.0.1",
        "port": port,
        "readOnlyPort": 0,
        "healthzPort": health,
        "containerRuntimeEndpoint": format!("unix://{}", layout.text("containerd/c.sock")),
        "staticPodPath": layout.text("manifests"),
        "podLogsDir": layout.text("log/pods"),
        "volumePluginDir": layout.text("run/volume-plugins"),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{cgroup}"),
        "cgroupsPerQOS": true,
        "enforceNodeAllocatable": [],
        "failSwapOn": false,
        "failCgroupV1": false,
        "resolvConf": "",
        "tlsCertFile": format!("{pki}/kubelet-server.crt"),
        "tlsPrivateKeyFile": format!("{pki}/kubelet-server.key"),
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": format!("{pki}/ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        // cadvisor may not know the root device (a virtual machine, a container).
        "localStorageCapacityIsolation": false,
        "registerNode": true,
        "nodeStatusUpdateFrequency": "2s",
        // The longest pause after an error, and after the exit of a container.
        "syncFrequency": "2s",
        "crashLoopBackOff": {"maxContainerRestartPeriod": "1s"},
        "cpuManagerReconcilePeriod": "10s",
        "makeIPTablesUtilChains": false,
        "protectKernelDefaults": false,
    })
}
