//! Every way to bypass a share, refused where the administrator does not allow it.

use serde_json::{Value, json};

use super::*;

/// Exactly one refusal: of this field, with this value, expecting this.
fn check(pod: &Value, field: &str, value: &str, expected: &str) {
    let [refusal] = &*refusals(pod, &Settings::default()) else {
        panic!("not one refusal: {pod}");
    };
    let allowed = "or a namespace where the administrator allows it";
    let text = format!(
        "{field}: {value} would let the pod bypass its GPU share; expected: {expected}, {allowed}"
    );
    assert_eq!(*refusal, text);
}

fn outside(path: &str) -> String {
    format!("a path that is neither inside {path} nor one of its parents")
}

#[test]
fn rejects_privileges_that_bypass_the_share() {
    let none = "none of ALL, SYS_ADMIN, SYS_PTRACE, SYS_RAWIO, SYS_MODULE, DAC_READ_SEARCH, BPF";
    let host_pid = with("spec.hostPID", &json!(true));
    check(&host_pid, "spec.hostPID", "true", "false");
    // Also in a container without a share: it is the same pod.
    for index in [0, 1] {
        let check = |name: &str, value: &Value, field: &str, shown: &str, expected: &str| {
            let pointer = format!("spec.containers.{index}.securityContext.{name}");
            let pod = with(&pointer, value);
            let field = format!("spec.containers[{index}].securityContext.{field}");
            check(&pod, &field, shown, expected);
        };
        check("privileged", &json!(true), "privileged", "true", "false");
        let (shown, usual) = (r#""Unmasked""#, r#""Default""#);
        check("procMount", &json!("Unmasked"), "procMount", shown, usual);
        for capability in [
            "SYS_ADMIN",
            "CAP_SYS_PTRACE",
            "sys_rawio",
            "ALL",
            "SYS_MODULE",
            "cap_dac_read_search",
            "BPF",
        ] {
            let added = json!({"add": ["NET_ADMIN", capability]});
            let shown = format!("{capability:?}");
            check("capabilities", &added, "capabilities.add[1]", &shown, none);
        }
    }
}

#[test]
fn warns_of_root_among_mps_clients() {
    let warned = |modes: &str, pointer: &str, value: &Value| {
        let mut pod = with(pointer, value);
        pod["metadata"]["annotations"] = json!({"aliquot.dev/vgpu-mode": modes});
        let (_, _, warnings) = admit(&pod, &Settings::default());
        let mut warnings = warnings.iter();
        warnings.any(|line| line.contains("may run as root"))
    };
    let of_container = "spec.containers.0.securityContext";
    for (pointer, value, expected) in [
        ("spec.hostUsers", json!(true), true),
        ("spec.hostUsers", json!(false), false),
        ("spec.securityContext", json!({"runAsUser": 1000}), false),
        ("spec.securityContext", json!({"runAsUser": 0}), true),
        (of_container, json!({"runAsNonRoot": true}), false),
    ] {
        assert_eq!(warned("vgpu, mps", pointer, &value), expected, "{value}");
        assert!(!warned("vgpu", pointer, &value), "{value}");
    }
}

#[test]
fn rejects_host_paths_that_bypass_the_share() {
    for (host_path, closed) in [
        ("/dev", "/dev"),
        ("/etc/cdi", "/etc/cdi"),
        ("/var/run/cdi", "/run/cdi"),
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
            &format!("{host_path:?}"),
            &outside(closed),
        );
    }
    let device = json!([{"name": "h", "hostPath": {"path": "/opt/disk", "type": "BlockDevice"}}]);
    check(
        &with("spec.volumes", &device),
        "spec.volumes[0].hostPath.type",
        "\"BlockDevice\"",
        "a type that is not a device",
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
fn rejects_writable_mounts_of_root_programs() {
    let field = "spec.volumes[0].hostPath.path";
    for (closed, rest) in [
        ("/etc/containerd", ""),
        ("/etc/crio", "/crio.conf.d"),
        ("/etc/containers", "/oci/hooks.d"),
        ("/var/lib/containers", "/storage"),
        ("/etc/nvidia-container-runtime", ""),
        ("/etc/systemd", "/system"),
        ("/opt/cni", "/bin"),
    ] {
        let pod = mounted(&format!("{closed}{rest}"), &[true]);
        check(
            &pod,
            field,
            &format!("\"{closed}{rest}\""),
            &outside(closed),
        );
    }
    for (host_path, closed) in [("/usr/bin", "/usr"), ("/lib64", "/lib64")] {
        let value = format!("{host_path:?}");
        let expected = format!(
            "{}, or readOnly: true on each of its mounts",
            outside(closed)
        );
        check(&mounted(host_path, &[false]), field, &value, &expected);
        check(
            &mounted(host_path, &[true, false]),
            field,
            &value,
            &expected,
        );
        admit(&mounted(host_path, &[true]), &Settings::default());
    }
}

#[test]
fn rejects_mounts_over_limiter_files() {
    for (path, ours) in [
        ("/.aliquot", "/.aliquot"),
        ("/.aliquot/limits", "/.aliquot"),
        ("/etc/ld.so.preload", "/etc/ld.so.preload"),
        ("/etc/", "/etc/ld.so.preload"),
        ("/", "/.aliquot"),
    ] {
        for (list, key) in [
            ("volumeMounts", "mountPath"),
            ("volumeDevices", "devicePath"),
        ] {
            check(
                &with(
                    &format!("spec.containers.0.{list}"),
                    &json!([{"name": "d", key: path}]),
                ),
                &format!("spec.containers[0].{list}[0].{key}"),
                &format!("{path:?}"),
                &outside(ours),
            );
        }
    }
}
