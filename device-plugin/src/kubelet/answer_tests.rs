//! Answers of Allocate, read back as from the checkpoint.

use aliquot_node_state::allocate_answer::{self, NonCdiAnswer};
use prost::Message as _;
use serde_json::{Value, json};

use super::*;
use crate::testing::published;

const NAME: &str = "GPU-a-0-0000000000000001";

fn allocate(
    device_list: DeviceListStrategy,
    ids: &[&str],
    limits: bool,
) -> api::ContainerAllocateResponse {
    use clap::Parser as _;
    let line = ["agent", "--node-name=n1", "--driver-root=/nonexistent"];
    let answers = AllocateAnswers {
        device_list,
        limits,
        paths: crate::settings::Settings::parse_from(line).paths(),
        published: published(&["GPU-a", "GPU-b"]),
    };
    let ids: DeviceIds = ids.iter().map(|&id| id.to_owned()).collect();
    answers.answer(&AnswerName::parse(NAME).expect("a name"), &ids)
}

fn as_json(answer: &api::ContainerAllocateResponse) -> Value {
    let mounts = answer.mounts.iter().map(|one| {
        let rights = if one.read_only { "ro" } else { "rw" };
        format!("{}:{}:{rights}", one.host_path, one.container_path)
    });
    let envs: std::collections::BTreeMap<_, _> = answer.envs.iter().collect();
    json!({"envs": envs, "mounts": mounts.collect::<Vec<_>>()})
}

#[test]
fn passes_gpus_by_environment_without_cdi() {
    let directory = format!("/var/lib/aliquot/seats/{NAME}");
    let mut mounts = vec![
        format!("{directory}:/.aliquot:ro"),
        format!("{directory}/counters/slots:/.aliquot/counters/slots:rw"),
    ];
    let mut envs = json!({
        "ALIQUOT_VISIBLE_DEVICES": "GPU-a,GPU-b",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        "NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b",
    });
    let ids = ["GPU-b::1", "GPU-a::0"];
    let unlimited = allocate(DeviceListStrategy::Envvar, &ids, false);
    assert_eq!(as_json(&unlimited), json!({"envs": envs, "mounts": mounts}));
    envs["CUDA_DEVICE_MEMORY_SHARED_CACHE"] = json!("/.aliquot/counters/slots");
    mounts.push(format!("{directory}/ld.so.preload:/etc/ld.so.preload:ro"));
    let limited = allocate(DeviceListStrategy::Envvar, &ids, true);
    assert_eq!(as_json(&limited), json!({"envs": envs, "mounts": mounts}));
    // A GPU that is gone makes none visible.
    let gone = allocate(DeviceListStrategy::Envvar, &["GPU-z::0"], true);
    assert_eq!(gone.envs["NVIDIA_VISIBLE_DEVICES"], "void");
}

/// As the checkpoint has it.
fn read(answer: &api::ContainerAllocateResponse) -> Option<(AnswerName, NonCdiAnswer)> {
    let (name, named) = allocate_answer::read(&answer.encode_to_vec()).expect("decoded");
    name.zip(named)
}

#[test]
fn reads_back_own_answers_from_checkpoint() {
    let allocate = |ids: &[&str]| allocate(DeviceListStrategy::Envvar, ids, true);
    let (name, named) = read(&allocate(&["GPU-b::1", "GPU-a::0"])).expect("ours");
    assert_eq!(name.as_str(), NAME);
    let expected = NonCdiAnswer {
        visible: ["GPU-a", "GPU-b"].map(str::to_owned).into(),
        preloads: true,
    };
    assert_eq!(named, expected);
    let mut other = allocate(&["GPU-a::0"]);
    other.mounts.remove(0);
    assert_eq!(read(&other), None, "such as HAMi's");
    let mut bad = allocate(&["GPU-a::0"]);
    bad.mounts[0].host_path = "/var/lib/aliquot/seats/..".to_owned();
    assert_eq!(read(&bad), None);
}
