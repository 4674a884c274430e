//! Our spec as text, and what is taken from NVIDIA's.

use super::*;

fn nvidia() -> NvidiaSpec {
    let spec = serde_json::from_value(json!({
        "cdiVersion": "0.7.0", "kind": "nvidia.com/gpu",
        "devices": [
            {"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}],
             "additionalGids": [44]}},
            {"name": "GPU-b", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia1"}],
             "additionalGids": [44, 45]}},
            {"name": "all", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia9"}]}},
        ],
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_CTK=1"],
            "deviceNodes": [{"path": "/dev/nvidiactl"}],
            "hooks": [{"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook"}],
        },
    }));
    NvidiaSpec {
        file: "/etc/cdi/nvidia.yaml".into(),
        spec: spec.expect("a spec"),
    }
}

/// The GPU with this index, whose device node has the same number.
fn gpu(uuid: &str, index: u32) -> NamedDevice {
    NamedDevice {
        uuid: uuid.into(),
        index: Some(index),
        minor: Some(index),
    }
}

fn name() -> AnswerName {
    AnswerName::parse("GPU-a-0-0000000000000001").expect("a name")
}

#[test]
fn renders_spec_for_runtime() {
    let driver = from_nodes(vec![json!({"path": "/dev/nvidia0"})]);
    let variables = vec!["A=1".to_owned()];
    let spec = spec(&name(), variables, "/s/seats/n", &driver, false);
    assert_eq!(
        serde_json::to_value(&spec).expect("json"),
        json!({
            "cdiVersion": "0.5.0", "kind": "aliquot.dev/vgpu",
            "devices": [{"name": "GPU-a-0-0000000000000001", "containerEdits": {
                "env": ["A=1"],
                "deviceNodes": [{"path": "/dev/nvidia0"}],
                "mounts": [
                    {"hostPath": "/s/seats/n", "containerPath": "/.aliquot",
                     "options": ["ro", "nosuid", "nodev", "bind"]},
                    {"hostPath": "/s/seats/n/counters/slots",
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
    let gpus = [gpu("GPU-b", 1), gpu("GPU-a", 0)];
    let edits = nvidia().edits_for(&gpus).expect("both are described").edits;
    let paths: Vec<_> = edits
        .device_nodes
        .iter()
        .map(|node| &node["path"])
        .collect();
    assert_eq!(paths, ["/dev/nvidiactl", "/dev/nvidia1", "/dev/nvidia0"]);
    assert_eq!(edits.other["additionalGids"], json!([44, 45]));
    assert_eq!(edits.other["hooks"].as_array().map(Vec::len), Some(1));
}

#[test]
fn prefers_own_variables_and_newer_cdi_version() {
    let driver = nvidia().edits_for(&[gpu("GPU-b", 1)]).expect("described");
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
fn ignores_spec_that_lacks_a_gpu_or_is_for_management() {
    let both = [gpu("GPU-b", 1), gpu("GPU-c", 2)];
    assert_eq!(nvidia().edits_for(&both), None);
    let mut management = nvidia();
    management.spec.kind = MANAGEMENT_KIND.to_owned();
    assert_eq!(management.edits_for(&[gpu("GPU-b", 1)]), None);
}

#[test]
fn refuses_index_whose_device_node_is_of_another_minor() {
    let check = |minor: Option<u32>, expected: Option<&str>| {
        let moved = NamedDevice {
            minor,
            ..gpu("GPU-a", 0)
        };
        let gpus = [gpu("GPU-b", 1), moved];
        let found = nvidia().other_minor(&gpus).map(|found| found.to_string());
        assert_eq!(found.as_deref(), expected);
        assert_eq!(nvidia().edits_for(&gpus).is_none(), expected.is_some());
    };
    check(Some(0), None);
    check(None, None);
    let words = "/etc/cdi/nvidia.yaml has /dev/nvidia0 for device 0, but GPU-a, which NVML lists at index 0, is /dev/nvidia3";
    check(Some(3), Some(words));
    // A name by UUID does not depend on the order.
    let swapped = NamedDevice {
        minor: Some(7),
        ..gpu("GPU-b", 0)
    };
    assert_eq!(nvidia().other_minor(&[swapped]), None);
}

#[test]
fn adds_only_missing_nodes_to_common_edits() {
    let nodes = ["/dev/nvidiactl", "/dev/nvidia4"].map(|path| json!({"path": path, "type": "c"}));
    let edits = nvidia().common_edits(&nodes).edits;
    let expected = [json!({"path": "/dev/nvidiactl"}), nodes[1].clone()];
    assert_eq!(edits.device_nodes, expected);
    assert!(edits.other.contains_key("hooks"));
}
