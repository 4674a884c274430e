//! Machine files: the machines they describe, and the errors for invalid ones.

use aliquot_gpusim::machine_file::parse;
use aliquot_gpusim::model::text;
use aliquot_gpusim::show;

fn check(yaml: &str, wanted: &[&str]) {
    let error = parse(yaml, None).err().expect(yaml).to_string();
    for text in wanted {
        assert!(error.contains(text), "{text:?} is not in: {error}");
    }
}

#[test]
fn rejects_invalid_machine_file_with_key_and_expected_value() {
    let a100 = "model: NVIDIA A100-SXM4-80GB";
    check("gpu: []", &["gpu"]);
    check("{}", &["gpus"]);
    check(
        "gpus: [{model: NVIDIA A99}]",
        &["gpus[0].model", "NVIDIA A99", "Tesla T4"],
    );
    check(&format!("gpus: [{{{a100}, cuont: 2}}]"), &["cuont"]);
    check(
        &format!("gpus: [{{{a100}, count: 0}}]"),
        &["gpus[0].count", "0", "16"],
    );
    check(
        &format!("gpus: [{{{a100}, count: 17}}]"),
        &["gpus[0].count", "17", "16"],
    );
    check(
        &format!("gpus: [{{{a100}, uuids: [GPU-1, GPU-2]}}]"),
        &["gpus[0].uuids", "2", "1"],
    );
    check(
        &format!("gpus: [{{{a100}, uuids: [x]}}]"),
        &["gpus[0].uuids", "x", "GPU-"],
    );
    let twins = format!("gpus: [{{{a100}, count: 2, uuids: [GPU-1, GPU-1]}}]");
    check(&twins, &["gpus[0].uuids", "GPU-1", "no other"]);
    check(
        &format!("gpus: [{{{a100}, memoryMib: 600}}]"),
        &["gpus[0].memoryMib", "600", "634"],
    );
    check(
        &format!("gpus: [{{{a100}, set: {{temperature: 999}}}}]"),
        &["gpus[0].set", "temperature", "999"],
    );
    check(
        &format!("gpus: [{{{a100}, set: {{heat: 1}}}}]"),
        &["gpus[0].set", "heat", "temperature"],
    );
    check(
        &format!("cuda: x\ngpus: [{{{a100}}}]"),
        &["cuda", "x", "13.0"],
    );
    check(
        &format!("driver: {}\ngpus: [{{{a100}}}]", "9".repeat(80)),
        &["driver", "80"],
    );
    let link = |link: &str| format!("gpus: [{{{a100}, count: 2}}]\nlinks: [{link}]");
    check(
        &link("{gpus: [0, 2]}"),
        &["links[0].gpus", "[0, 2]", "below 2"],
    );
    check(&link("{gpus: [1, 1]}"), &["links[0].gpus", "[1, 1]"]);
    check(
        &link("{gpus: [0, 1], nvlinks: 19}"),
        &["links[0].nvlinks", "19", "18"],
    );
    check(
        &link("{gpus: [0, 1], level: near}"),
        &["near", "hostBridge"],
    );
}

#[test]
fn every_model_has_defaults_and_every_machine_own_uuids() {
    for model in aliquot_gpusim::catalog::MODELS {
        let yaml = |name: &str| format!("name: {name}\ngpus: [{{model: {}}}]", model.name);
        let (a, b) = (
            parse(&yaml("a"), None).unwrap(),
            parse(&yaml("b"), None).unwrap(),
        );
        assert_eq!(text(&a.gpus[0].model), model.name);
        assert_ne!(a.gpus[0].uuid, b.gpus[0].uuid);
        assert_eq!(
            a.gpus[0].uuid,
            parse(&yaml("a"), None).unwrap().gpus[0].uuid
        );
    }
}

#[test]
fn builds_gpus_from_groups_links_and_initial_values() {
    let yaml = "
driver: 570.86.16
cuda: \"12.8\"
gpus:
  - {count: 2, model: NVIDIA L40S, numa: 1, uuids: [GPU-a, GPU-b]}
  - {model: Tesla T4, memoryMib: 8000, set: {health: lost, utilisation: 7}}
links:
  - {gpus: [0, 1], level: single, nvlinks: 2}
";
    let machine = parse(yaml, None).unwrap();
    let shown = show::json(&machine);
    assert_eq!(shown["driver"], "570.86.16");
    assert_eq!(shown["nvml"], "13.570.86.16");
    assert_eq!(shown["cuda"], "12.8");
    assert_eq!(shown["gpus"][1]["uuid"], "GPU-b");
    assert_eq!(shown["gpus"][0]["nvlinks"], serde_json::json!([1, 1]));
    assert_eq!(shown["gpus"][2]["memory"], 8000);
    assert_eq!(shown["gpus"][2]["health"], "lost");
    assert_eq!(machine.gpus[0].levels[..3], [0, 10, 50]);
    assert_eq!(machine.gpus[2].levels[..3], [50, 50, 0]);
}

#[test]
fn own_values_of_a_group_prevail_over_its_profile() {
    let own = "gpus: [{model: Tesla T4, reservedMib: 96, set: {contextMib: 100, profile: harsh}}]";
    let other = "gpus: [{model: Tesla T4, set: {profile: blind}}, {model: Tesla T4}]";
    let settings = |yaml: &str, profile, gpu: usize, field: &str| {
        show::json(&parse(yaml, profile).unwrap())["gpus"][gpu]["settings"][field].clone()
    };
    let reserved = show::json(&parse(own, None).unwrap())["gpus"][0]["memoryReserved"].clone();
    assert_eq!(reserved, 96);
    assert_eq!(settings(own, None, 0, "contextMib"), 100);
    assert_eq!(settings(own, None, 0, "switchUs"), 200);
    assert_eq!(settings(other, None, 1, "switchUs"), 0);
    // A profile for all GPUs is for those that have none.
    let blind = "bytesNotAvailable";
    assert_eq!(settings(other, Some("harsh"), 1, "switchUs"), 200);
    assert_eq!(settings(other, Some("harsh"), 1, blind), "off");
    assert_eq!(settings(other, Some("harsh"), 0, blind), "on");
    let error = parse(other, Some("mild")).err().unwrap().to_string();
    assert!(error.contains("mild") && error.contains("harsh"), "{error}");
}
