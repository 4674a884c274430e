//! The effective configuration of a node, from its inventory.

use aliquot_core::inventory::Inventory;
use aliquot_profiles::effective::effective;
use aliquot_profiles::{Config, read};
use serde_json::{Value, json};

fn gpu(index: u32, mode: &str, resource: &str, replicas: u32, scaled: u32) -> Value {
    json!({
        "uuid": format!("GPU-0000000{index}-0000-0000-0000-000000000000"), "index": index,
        "model": "NVIDIA A30", "memory": 1000, "scaled": scaled, "cores": 100, "replicas": replicas,
        "mode": mode, "resource": resource, "health": "ok",
    })
}

fn check(gpus: &[Value], expected: Result<&str, &str>) {
    let text = json!({"v": 1, "reads": [1], "gpus": gpus}).to_string();
    let inventory = Inventory::decode(&text).expect("an inventory");
    let found = effective("n1", &inventory);
    match expected {
        Ok(profile) => {
            let text = format!(
                "{{apiVersion: aliquot.dev/v1alpha1, default: n1, profiles: {{n1: {profile}}}}}"
            );
            let expected_config: Config = read(&text).expect("a good configuration");
            let found = found.expect(profile);
            assert_eq!(found, expected_config);
            assert_eq!(read(&found.to_yaml().expect("YAML")), Ok(found));
        }
        Err(message) => assert_eq!(found.map_err(|f| f.to_string()), Err(message.to_owned())),
    }
}

#[test]
fn merges_gpus_with_same_mode_into_one_entry() {
    let built_in = "{gpus: [{select: {all: true}, optional: true, mode: vgpu}]}";
    check(&[], Ok(built_in));
    let message = "gpus[0].mode: \"mig\" cannot be expressed by this release; expected: vgpu, exclusive, timeslice, mps";
    check(&[gpu(0, "mig", "nvidia.com/gpu", 7, 1000)], Err(message));
    let vgpu = |index| gpu(index, "vgpu", "nvidia.com/gpu", 10, 1500);
    check(
        &[vgpu(0), vgpu(1)],
        Ok("{gpus: [{select: {all: true}, mode: vgpu, split: 10, memoryScaling: 1.5}]}"),
    );
    // Beside a GPU that is not offered, which has the lowest index, or to which it has a link.
    let mut linked = vgpu(0);
    linked["links"] = json!({"GPU-00000009-0000-0000-0000-000000000000": 1});
    for (gpu, uuid) in [(vgpu(1), "GPU-00000001"), (linked, "GPU-00000000")] {
        let own = format!(
            "{{gpus: [{{select: {{uuid: {uuid}-0000-0000-0000-000000000000}}, mode: vgpu, split: 10, memoryScaling: 1.5}}]}}"
        );
        check(&[gpu], Ok(&own));
    }
    check(
        &[
            vgpu(0),
            gpu(1, "timeslice", "nvidia.com/gpu.shared", 4, 1000),
            vgpu(2),
            strict(gpu(3, "mps", "nvidia.com/gpu", 4, 1000)),
            gpu(4, "exclusive", "nvidia.com/gpu", 1, 1000),
        ],
        Ok("{gpus: [
            {select: {uuid: [GPU-00000000-0000-0000-0000-000000000000, GPU-00000002-0000-0000-0000-000000000000]}, mode: vgpu, split: 10, memoryScaling: 1.5},
            {select: {uuid: GPU-00000001-0000-0000-0000-000000000000}, mode: timeslice, replicas: 4, rename: nvidia.com/gpu.shared},
            {select: {uuid: GPU-00000003-0000-0000-0000-000000000000}, mode: mps, replicas: 4},
            {select: {uuid: GPU-00000004-0000-0000-0000-000000000000}, mode: exclusive}]}"),
    );
}

fn strict(mut gpu: Value) -> Value {
    gpu["strict"] = json!(true);
    gpu
}

/// An instance of GPU 0.
fn instance(profile: &str, start: u8, mode: &str, replicas: u32) -> Value {
    let resource = format!("nvidia.com/mig-{profile}");
    let mut instance = gpu(0, mode, &resource, replicas, 1000);
    let parent = instance["uuid"].clone();
    instance["uuid"] = json!(format!("MIG-{start}"));
    instance["mig"] =
        json!({"parent": parent, "profile": profile, "start": start, "gi": 0, "ci": 0});
    instance
}

/// A GPU with dynamic MIG of one profile, and what is reserved of it.
fn dynamic_mig(reserved: &[Value]) -> Value {
    let mut dynamic = gpu(0, "mig", "nvidia.com/gpu", 0, 1000);
    let profile = json!({"name": "1g.5gb", "compute": 1, "size": 1, "memory": 4864, "starts": [0, 1], "most": 7});
    dynamic["mig"] =
        json!({"compute": 7, "profiles": [profile], "instances": [], "reserved": reserved});
    dynamic
}

#[test]
fn shows_partitioned_gpus_as_layout_or_dynamic() {
    let instances = [
        instance("1g.5gb", 0, "exclusive", 1),
        instance("1g.5gb", 1, "exclusive", 1),
        instance("3g.20gb", 4, "mps", 3),
    ];
    let layout = "{gpus: [{select: {all: true}, mode: mig, strategy: mixed, layout: [{profile: 1g.5gb, count: 2}, {profile: 3g.20gb, count: 1, on: {mode: mps, replicas: 3, strict: false}}]}]}";
    check(&instances, Ok(layout));
    let named = |mode, resource: &str| {
        let mut instance = instance("1g.5gb", 0, mode, 2);
        instance["resource"] = json!(resource);
        [instance]
    };
    let renamed = "{gpus: [{select: {all: true}, mode: mig, layout: [{profile: 1g.5gb, on: {mode: timeslice, replicas: 2, rename: nvidia.com/small}}]}]}";
    check(&named("timeslice", "nvidia.com/small"), Ok(renamed));
    // Whole GPUs have another name in this cluster.
    let single =
        "{gpus: [{select: {all: true}, mode: mig, strategy: single, layout: [{profile: 1g.5gb}]}]}";
    check(&named("exclusive", "example.com/gpu"), Ok(single));
    let dynamic = "{gpus: [{select: {all: true}, mode: mig, dynamic: true, allow: [1g.5gb]}]}";
    check(&[dynamic_mig(&[])], Ok(dynamic));
}

#[test]
fn mig_15_shows_reservations_for_namespaces() {
    let reserved = |mut instance: Value| {
        instance["reserved"] = json!(["monitoring"]);
        instance
    };
    let instances = [
        reserved(instance("1g.5gb", 0, "exclusive", 1)),
        reserved(instance("1g.5gb", 1, "exclusive", 1)),
        instance("1g.5gb", 2, "exclusive", 1),
    ];
    let layout = "{gpus: [{select: {all: true}, reserve: [{profile: 1g.5gb, count: 2, namespaces: [monitoring]}], mode: mig, layout: [{profile: 1g.5gb, count: 3}]}]}";
    check(&instances, Ok(layout));
    let whole = |index| gpu(index, "exclusive", "nvidia.com/gpu", 1, 1000);
    let entries = "{gpus: [
            {select: {uuid: GPU-00000000-0000-0000-0000-000000000000}, mode: exclusive},
            {select: {uuid: GPU-00000001-0000-0000-0000-000000000000}, reserve: [{namespaces: [monitoring]}], mode: exclusive}]}";
    check(&[whole(0), reserved(whole(1))], Ok(entries));
    let placement = json!({"profile": "1g.5gb", "start": 1, "namespaces": ["monitoring"]});
    let dynamic = "{gpus: [{select: {all: true}, reserve: [{profile: 1g.5gb, namespaces: [monitoring]}], mode: mig, dynamic: true, allow: [1g.5gb]}]}";
    check(&[dynamic_mig(&[placement])], Ok(dynamic));
}
