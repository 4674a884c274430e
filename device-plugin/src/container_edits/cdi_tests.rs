//! Our spec as text, and what is taken from NVIDIA's.

use super::*;
use crate::testing::host_device;

fn nvidia() -> Spec {
    let spec = serde_json::from_value(json!({
        "cdiVersion": "0.7.0", "kind": "nvidia.com/gpu",
        "devices": [
            {"name": "GPU-a", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}],
             "additionalGids": [44]}},
            {"name": "GPU-b", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia1"}],
             "additionalGids": [44, 45]}},
            {"name": "all", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia9"}]}},
        ],
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_CTK=1"],
            "deviceNodes": [{"path": "/dev/nvidiactl"}],
            "mounts": [
                {"hostPath": "/usr/lib64/libcuda.so.580", "containerPath": "/usr/lib64/libcuda.so.580"},
                {"hostPath": "/tmp/nvidia-mps", "containerPath": "/tmp/nvidia-mps"},
            ],
            "hooks": [{"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook"}],
        },
    }));
    spec.expect("a spec")
}

fn gpu(uuid: &str) -> HostDevice {
    HostDevice {
        uuid: uuid.into(),
        ..host_device(0, None)
    }
}

fn name() -> AnswerName {
    AnswerName::parse("GPU-a-0-0000000000000001").expect("a name")
}

#[test]
fn renders_spec_for_runtime() {
    let driver = DriverEdits {
        edits: Edits {
            device_nodes: vec![json!({"path": "/dev/nvidia0"})],
            ..Edits::default()
        },
        ..DriverEdits::default()
    };
    let variables = vec!["A=1".to_owned()];
    let spec = spec(&name(), variables, "/s/containers/n", &driver, false);
    assert_eq!(
        serde_json::to_value(&spec).expect("json"),
        json!({
            "cdiVersion": "0.5.0", "kind": "aliquot.dev/vgpu",
            "devices": [{"name": "GPU-a-0-0000000000000001", "containerEdits": {
                "env": ["A=1"],
                "deviceNodes": [{"path": "/dev/nvidia0"}],
                "mounts": [
                    {"hostPath": "/s/containers/n", "containerPath": "/.aliquot",
                     "options": ["ro", "nosuid", "nodev", "bind"]},
                    {"hostPath": "/s/containers/n/counters/slots",
                     "containerPath": "/.aliquot/counters/slots",
                     "options": ["rw", "nosuid", "nodev", "noexec", "bind"]},
                ],
            }}],
        })
    );
    // Further names repeat the variables, but not the mounts.
    let spec = variables_only(&name(), vec!["A=1".to_owned()]);
    let edits = serde_json::to_value(&spec.devices[0].container_edits).expect("json");
    assert_eq!(edits, json!({"env": ["A=1"]}));
}

#[test]
fn takes_only_container_gpus_from_nvidia_spec() {
    let paths = |edits: &Edits| -> Vec<Value> {
        let nodes = edits.device_nodes.iter();
        nodes.map(|node| node["path"].clone()).collect()
    };
    let edits = nvidia().driver(&[gpu("GPU-b"), gpu("GPU-a")]).edits;
    let expected = ["/dev/nvidiactl", "/dev/nvidia1", "/dev/nvidia0"];
    assert_eq!(paths(&edits), expected);
    assert_eq!(edits.other["additionalGids"], json!([44, 45]));
    assert_eq!(edits.other["hooks"].as_array().map(Vec::len), Some(1));
    // What all have in common also serves an instance that the spec does not name.
    let newer = nvidia().driver(&[host_device(0, Some("MIG-a"))]).edits;
    assert_eq!(paths(&newer), ["/dev/nvidiactl"]);
    assert_eq!(newer.other["hooks"], edits.other["hooks"]);
}

#[test]
fn container_gets_no_mps_daemon_of_the_host() {
    let edits = nvidia().driver(&[gpu("GPU-a")]).edits;
    let mounts = edits.mounts.iter();
    let paths: Vec<&Value> = mounts.map(|mount| &mount["containerPath"]).collect();
    assert_eq!(paths, ["/usr/lib64/libcuda.so.580"]);
}

#[test]
fn prefers_own_variables_and_newer_cdi_version() {
    let driver = nvidia().driver(&[gpu("GPU-b")]);
    let ours = vec!["NVIDIA_VISIBLE_DEVICES=GPU-b".to_owned()];
    let spec = spec(&name(), ours, "/s", &driver, true);
    let mounts = &spec.devices[0].container_edits.mounts;
    let recursive = json!(["ro", "nosuid", "nodev", "rbind", "rro"]);
    assert!(
        mounts.iter().any(|one| one["options"] == recursive),
        "{mounts:?}"
    );
    assert_eq!(spec.version, "0.7.0");
    assert_eq!(
        spec.devices[0].container_edits.env,
        ["NVIDIA_CTK=1", "NVIDIA_VISIBLE_DEVICES=GPU-b"]
    );
}

#[test]
fn detects_recursive_read_only_by_kernel_release() {
    for (release, expected) in [
        ("6.18.44-x", true),
        ("5.12.0", true),
        ("5.4.0-1-amd64", false),
        ("4.18.0", false),
        ("", false),
    ] {
        assert_eq!(is_since_5_12(release), expected, "{release}");
    }
}
