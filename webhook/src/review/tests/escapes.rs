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
    let none = "none of ALL, SYS_ADMIN, SYS_PTRACE, SYS_RAWIO";
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
        for capability in ["SYS_ADMIN", "CAP_SYS_PTRACE", "sys_rawio", "ALL"] {
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
