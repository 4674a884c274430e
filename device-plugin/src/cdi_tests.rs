//! Our spec as text, and what is taken from NVIDIA's.

use super::*;

fn nvidia() -> Spec {
    serde_json::from_value(json!({
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
    }))
    .expect("a spec")
}

fn name() -> AnswerName {
    AnswerName::parse("GPU-a-0-0000000000000001").expect("a name")
}

#[test]
fn renders_spec_for_runtime() {
    let driver = from_nodes(vec![json!({"path": "/dev/nvidia0"})], Vec::new());
    let spec = spec(
        &name(),
        vec!["A=1".to_owned()],
        "/s/seats/n",
        &driver,
        false,
    );
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
}

#[test]
fn repeats_variables_but_not_mounts_for_further_names() {
    let spec = variables_only(&name(), vec!["A=1".to_owned()]);
    let edits = serde_json::to_value(&spec.devices[0].container_edits).expect("json");
    assert_eq!(edits, json!({"env": ["A=1"]}));
}

#[test]
fn takes_only_container_gpus_from_nvidia_spec() {
    let gpus = [("GPU-b".into(), Some(1)), ("GPU-a".into(), Some(0))];
    let driver = from_nvidia(&[nvidia()], &gpus).expect("both are described");
    let paths: Vec<&str> = driver
        .edits
        .device_nodes
        .iter()
        .filter_map(|node| node["path"].as_str())
        .collect();
    assert_eq!(paths, ["/dev/nvidiactl", "/dev/nvidia1", "/dev/nvidia0"]);
    assert_eq!(driver.edits.other["additionalGids"], json!([44, 45]));
    assert_eq!(
        driver.edits.other["hooks"].as_array().map(Vec::len),
        Some(1)
    );
}

#[test]
fn prefers_own_variables_and_newer_cdi_version() {
    let driver = from_nvidia(&[nvidia()], &[("GPU-b".into(), Some(1))]).expect("described");
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
fn ignores_spec_that_lacks_a_gpu_or_has_other_kind() {
    let check = |spec: Spec, gpus: &[(GpuUuid, Option<u32>)]| {
        assert_eq!(from_nvidia(&[spec], gpus), None);
    };
    check(
        nvidia(),
        &[("GPU-b".into(), Some(1)), ("GPU-c".into(), Some(2))],
    );
    let mut other = nvidia();
    other.kind = "aliquot.dev/vgpu".to_owned();
    check(other, &[("GPU-b".into(), Some(1))]);
}
