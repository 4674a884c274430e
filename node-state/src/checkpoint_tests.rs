//! Tables for the checkpoint reader.

use prost::Message as _;

use super::*;
use crate::allocate_answer::{CdiDevice, ContainerAllocateResponse};

const GPU: &str = "nvidia.com/gpu";

fn answer(device: &str) -> String {
    let answer = ContainerAllocateResponse {
        cdi_devices: vec![CdiDevice {
            name: device.to_owned(),
        }],
    };
    base64::engine::general_purpose::STANDARD.encode(answer.encode_to_vec())
}

fn file(entries: &serde_json::Value) -> Vec<u8> {
    serde_json::json!({
        "Data": {"PodDeviceEntries": entries, "RegisteredDevices": {GPU: ["GPU-a::0"]}},
        "Checksum": 1_234_567_890_u64,
    })
    .to_string()
    .into_bytes()
}

fn check(entries: &serde_json::Value) -> Result<Vec<CheckpointEntry>, String> {
    parse(&file(entries), Path::new("/k/cp"), &[GPU.to_owned()].into()).map_err(|e| e.to_string())
}

#[test]
fn finds_container_and_name_of_device_ids() {
    let name = "aliquot.dev/vgpu=GPU-a-0-0000000000000001";
    let entries = check(&serde_json::json!([
        {"PodUID": "u1", "ContainerName": "main", "ResourceName": GPU,
         "DeviceIDs": {"-1": ["GPU-b::1"], "0": ["GPU-a::0"]}, "AllocResp": answer(name)},
        {"PodUID": "u1", "ContainerName": "main", "ResourceName": "other.dev/nic",
         "DeviceIDs": {"-1": ["n1"]}, "AllocResp": "!!"},
        {"PodUID": "u2", "ContainerName": "old", "ResourceName": GPU,
         "DeviceIDs": null, "AllocResp": answer("nvidia.com/gpu=0")},
    ]))
    .expect("readable");
    let ids: DeviceIds = ["GPU-a::0", "GPU-b::1"].map(str::to_owned).into();
    let names = entries
        .iter()
        .map(|entry| entry.name.as_ref().map(AnswerName::qualified));
    assert_eq!(names.collect::<Vec<_>>(), [Some(name.to_owned()), None]);
    assert_eq!(entries[0].resource, GPU);
    let found: Vec<_> = holders(&entries, GPU, &ids).collect();
    assert_eq!(found, [&entries[0]]);
}

#[test]
fn recognizes_own_answer_under_former_resource_name() {
    let name = "aliquot.dev/vgpu=GPU-a-0-0000000000000001";
    let entries = check(&serde_json::json!([
        {"PodUID": "u1", "ContainerName": "main", "ResourceName": "nvidia.com/gpu.shared",
         "DeviceIDs": {"-1": ["GPU-a::0"]}, "AllocResp": answer(name)},
        {"PodUID": "u1", "ContainerName": "main", "ResourceName": GPU,
         "DeviceIDs": {"-1": ["GPU-a::0"]}, "AllocResp": answer(name)},
    ]))
    .expect("readable");
    let ids: DeviceIds = ["GPU-a::0".to_owned()].into();
    let found: Vec<_> = holders(&entries, "nvidia.com/gpu.shared", &ids).collect();
    assert_eq!(found, [&entries[0]]);
}

#[test]
fn reads_file_written_by_kubelet_types() {
    let bytes = include_bytes!("../../device-plugin/tests/golden/kubelet-checkpoint.json");
    let entries = parse(bytes, Path::new("/k/cp"), &[GPU.to_owned()].into()).expect("readable");
    let [entry] = entries.as_slice() else {
        panic!("{entries:?}");
    };
    assert_eq!((entry.pod.as_str(), &*entry.container), ("u-1", "main"));
    assert_eq!(entry.ids, DeviceIds::from(["GPU-a::0".to_owned()]));
    let name = entry.name.as_ref().map(AnswerName::as_str);
    assert_eq!(name, Some("GPU-a-0-0123456789abcdef"));
}

#[test]
fn reads_registered_ids_of_every_plugin() {
    let ids = |ids: &[&str]| ids.iter().map(|&id| id.to_owned()).collect::<DeviceIds>();
    let bytes = include_bytes!("../../device-plugin/tests/golden/kubelet-checkpoint.json");
    let registered = parse_registered(bytes, Path::new("/k/cp")).expect("readable");
    let expected = (GPU.to_owned(), ids(&["GPU-a::0", "GPU-a::1"]));
    assert_eq!(registered, [expected].into());

    let check = |registered: serde_json::Value, expected: &[(&str, &[&str])]| {
        let file = serde_json::json!({"Data": {"RegisteredDevices": registered}}).to_string();
        let found = parse_registered(file.as_bytes(), Path::new("/k/cp")).expect("readable");
        let expected = expected.iter();
        let expected = expected.map(|(resource, all)| ((*resource).to_owned(), ids(all)));
        assert_eq!(found, expected.collect::<BTreeMap<_, _>>());
    };
    check(serde_json::Value::Null, &[]);
    check(
        serde_json::json!({GPU: ["nvidia1", "nvidia0"], "other.dev/nic": null}),
        &[(GPU, &["nvidia0", "nvidia1"]), ("other.dev/nic", &[])],
    );
}

#[test]
fn treats_missing_checkpoint_as_empty() {
    assert_eq!(check(&serde_json::Value::Null), Ok(Vec::new()));
    let missing = Path::new("/nonexistent/kubelet_internal_checkpoint");
    let entries = read(missing, &[GPU.to_owned()].into());
    assert_eq!(entries.expect("none"), []);
    let registered = read_registered(missing);
    assert_eq!(registered.expect("none"), BTreeMap::new());
}

#[test]
fn explains_unreadable_checkpoint() {
    let resources = [GPU.to_owned()].into();
    let truncated = parse(b"{\"Data\": {", Path::new("/k/cp"), &resources);
    let truncated = truncated.expect_err("not JSON").to_string();
    assert!(truncated.contains("/k/cp"), "{truncated}");
    for bad in ["!!", "CgU="] {
        let error = check(&serde_json::json!([
            {"PodUID": "u1", "ContainerName": "main", "ResourceName": GPU,
             "DeviceIDs": {"-1": ["GPU-a::0"]}, "AllocResp": bad},
        ]))
        .expect_err(bad);
        assert!(error.contains("container main of pod u1"), "{error}");
    }
}
