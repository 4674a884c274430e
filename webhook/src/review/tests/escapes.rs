//! Every way around a share, refused where the administrator does not allow it.

use serde_json::json;

use super::refused::check;
use super::*;

fn escape(value: &str, accepted: &str) -> String {
    format!(
        "{value} lets a pod reach around its GPU share; accepted: {accepted}, or a namespace \
         where the administrator allows it"
    )
}

#[test]
fn ways_around_the_share() {
    let none = "none of ALL, SYS_ADMIN, SYS_PTRACE, SYS_RAWIO, SYS_MODULE, DAC_READ_SEARCH, BPF";
    check(
        &with("spec.hostPID", &json!(true)),
        "spec.hostPID",
        &escape("true", "false"),
    );
    // Also in a container without a share: it is the same pod.
    for index in [0, 1] {
        let at = |rest: &str| format!("spec.containers.{index}.securityContext.{rest}");
        let field = |rest: &str| format!("spec.containers[{index}].securityContext.{rest}");
        check(
            &with(&at("privileged"), &json!(true)),
            &field("privileged"),
            &escape("true", "false"),
        );
        check(
            &with(&at("procMount"), &json!("Unmasked")),
            &field("procMount"),
            &escape("\"Unmasked\"", "\"Default\""),
        );
        for capability in [
            "SYS_ADMIN",
            "CAP_SYS_PTRACE",
            "sys_rawio",
            "ALL",
            "SYS_MODULE",
            "cap_dac_read_search",
            "BPF",
        ] {
            check(
                &with(
                    &at("capabilities"),
                    &json!({"add": ["NET_ADMIN", capability]}),
                ),
                &field("capabilities.add[1]"),
                &escape(&format!("{capability:?}"), none),
            );
        }
    }
}

#[test]
fn host_paths_that_lead_around_the_share() {
    for (host_path, closed) in [
        ("/dev", "/dev"),
        ("/", "/dev"),
        ("/dev/nvidia0", "/dev"),
        ("/etc/cdi", "/etc/cdi"),
        ("/etc", "/etc/cdi"),
        ("/var/run/cdi", "/run/cdi"),
        ("/var/lib", "/var/lib/kubelet"),
        ("/var/lib/kubelet/pods", "/var/lib/kubelet"),
        ("/run/containerd/containerd.sock", "/run/containerd"),
        ("/var/run/docker.sock", "/run/docker.sock"),
        ("/etc/kubernetes/manifests", "/etc/kubernetes"),
        ("/proc/sys/kernel", "/proc"),
        ("/var/lib/aliquot/shares", "/var/lib/aliquot"),
    ] {
        let volumes = json!([{"name": "d", "emptyDir": {}}, {"name": "h", "hostPath": {"path": host_path, "type": ""}}]);
        check(
            &with("spec.volumes", &volumes),
            "spec.volumes[1].hostPath.path",
            &escape(
                &format!("{host_path:?}"),
                &format!("a path neither above nor below {closed}"),
            ),
        );
    }
    let device = json!([{"name": "h", "hostPath": {"path": "/opt/disk", "type": "BlockDevice"}}]);
    check(
        &with("spec.volumes", &device),
        "spec.volumes[0].hostPath.type",
        &escape("\"BlockDevice\"", "no device"),
    );
}

/// A volume at this path of the host, mounted by the second container.
fn mounted(host_path: &str, read_only: &[bool]) -> Value {
    let mut pod = with(
        "spec.volumes",
        &json!([{"name": "h", "hostPath": {"path": host_path}}]),
    );
    let mount = |read_only: &bool| json!({"name": "h", "mountPath": "/h", "readOnly": read_only});
    let mounts: Vec<Value> = read_only.iter().map(mount).collect();
    pod["spec"]["containers"][1]["volumeMounts"] = json!(mounts);
    pod
}

#[test]
fn who_wrote_what_root_of_the_node_starts_or_reads_had_left_its_share() {
    let field = "spec.volumes[0].hostPath.path";
    for (host_path, closed) in [
        ("/etc/containerd", "/etc/containerd"),
        ("/etc/crio/crio.conf.d", "/etc/crio"),
        (
            "/etc/nvidia-container-runtime",
            "/etc/nvidia-container-runtime",
        ),
        ("/etc/systemd/system", "/etc/systemd"),
        ("/opt/cni/bin", "/opt/cni"),
    ] {
        let accepted = format!("a path neither above nor below {closed}");
        let message = escape(&format!("{host_path:?}"), &accepted);
        check(&mounted(host_path, &[true]), field, &message);
    }
    for (host_path, closed) in [("/usr/bin", "/usr"), ("/lib64", "/lib64")] {
        let accepted = format!(
            "a path neither above nor below {closed}, or readOnly: true at each of its mounts"
        );
        let message = escape(&format!("{host_path:?}"), &accepted);
        check(&mounted(host_path, &[false]), field, &message);
        check(&mounted(host_path, &[true, false]), field, &message);
        admit(&mounted(host_path, &[true]), &Settings::default());
    }
}

#[test]
fn mounts_over_our_files() {
    for (at, ours) in [
        ("/.aliquot", "/.aliquot"),
        ("/.aliquot/limits", "/.aliquot"),
        ("/etc/ld.so.preload", "/etc/ld.so.preload"),
        ("/etc/", "/etc/ld.so.preload"),
        ("/", "/.aliquot"),
    ] {
        let accepted = format!("a path neither above nor below {ours}");
        for (list, key) in [
            ("volumeMounts", "mountPath"),
            ("volumeDevices", "devicePath"),
        ] {
            check(
                &with(
                    &format!("spec.containers.0.{list}"),
                    &json!([{"name": "d", key: at}]),
                ),
                &format!("spec.containers[0].{list}[0].{key}"),
                &escape(&format!("{at:?}"), &accepted),
            );
        }
    }
}
