//! What a node does, from its inventory, as a configuration.
//!
//! Fed by: inventories written here. Must not: need a cluster.

use aliquot_core::inventory::Inventory;
use aliquot_profiles::shown::effective;
use aliquot_profiles::{Config, read};
use serde_json::{Value, json};

fn card(index: u32, mode: &str, resource: &str, seats: u32, scaled: u32) -> Value {
    json!({
        "uuid": format!("GPU-0000000{index}-0000-0000-0000-000000000000"), "index": index,
        "model": "NVIDIA A30", "memory": 1000, "scaled": scaled, "cores": 100, "seats": seats,
        "mode": mode, "resource": resource, "health": "ok",
    })
}

fn check(cards: &[Value], expected: Result<&str, &str>) {
    let text = json!({"v": 1, "reads": [1], "gpus": cards}).to_string();
    let inventory = Inventory::decode(&text).expect("an inventory");
    let found = effective("n1", &inventory);
    match expected {
        Ok(profile) => {
            let text = format!(
                "{{apiVersion: aliquot.dev/v1alpha1, default: n1, profiles: {{n1: {profile}}}}}"
            );
            let wanted: Config = read(&text).expect("a good configuration");
            let found = found.expect(profile);
            assert_eq!(found, wanted);
            assert_eq!(read(&found.to_yaml().expect("YAML")), Ok(found));
        }
        Err(message) => assert_eq!(found.map_err(|f| f.to_string()), Err(message.to_owned())),
    }
}

#[test]
fn cards_that_are_shared_alike_are_one_entry() {
    let vgpu = |index| card(index, "vgpu", "nvidia.com/gpu", 10, 1500);
    check(
        &[vgpu(0), vgpu(1)],
        Ok("{gpus: [{select: {all: true}, mode: vgpu, split: 10, memoryScaling: 1.5}]}"),
    );
    check(
        &[
            vgpu(0),
            card(1, "timeslice", "nvidia.com/gpu.shared", 4, 1000),
            vgpu(2),
            strict(card(3, "mps", "nvidia.com/gpu", 4, 1000)),
            card(4, "exclusive", "nvidia.com/gpu", 1, 1000),
        ],
        Ok("{gpus: [
            {select: {uuid: [GPU-00000000-0000-0000-0000-000000000000, GPU-00000002-0000-0000-0000-000000000000]}, mode: vgpu, split: 10, memoryScaling: 1.5},
            {select: {uuid: GPU-00000001-0000-0000-0000-000000000000}, mode: timeslice, replicas: 4, rename: nvidia.com/gpu.shared},
            {select: {uuid: GPU-00000003-0000-0000-0000-000000000000}, mode: mps, replicas: 4},
            {select: {uuid: GPU-00000004-0000-0000-0000-000000000000}, mode: exclusive}]}"),
    );
}

#[test]
fn a_node_without_cards_has_the_built_in_profile() {
    check(
        &[],
        Ok("{gpus: [{select: {all: true}, optional: true, mode: vgpu}]}"),
    );
}

#[test]
fn a_mode_whose_settings_are_not_in_the_inventory_is_not_made_up() {
    check(
        &[card(0, "mig", "nvidia.com/gpu", 7, 1000)],
        Err(
            "gpus[0].mode: \"mig\" cannot be shown by this release; accepted: vgpu, exclusive, timeslice, mps",
        ),
    );
}

fn strict(mut card: Value) -> Value {
    card["strict"] = json!(true);
    card
}

/// An instance of card 0.
fn part(profile: &str, start: u8, mode: &str, seats: u32) -> Value {
    let mut unit = card(0, mode, &format!("nvidia.com/mig-{profile}"), seats, 1000);
    let parent = unit["uuid"].clone();
    unit["uuid"] = json!(format!("MIG-{start}"));
    unit["mig"] = json!({"parent": parent, "profile": profile, "start": start, "gi": 0, "ci": 0});
    unit
}

#[test]
fn cards_that_are_cut_are_shown_as_layouts_or_as_dynamic() {
    let instances = [
        part("1g.5gb", 0, "exclusive", 1),
        part("1g.5gb", 1, "exclusive", 1),
        part("3g.20gb", 4, "mps", 3),
    ];
    check(
        &instances,
        Ok(
            "{gpus: [{select: {all: true}, mode: mig, strategy: mixed, layout: [{profile: 1g.5gb, count: 2}, {profile: 3g.20gb, count: 1, on: {mode: mps, replicas: 3, strict: false}}]}]}",
        ),
    );
    let mut dynamic = card(1, "mig", "nvidia.com/gpu", 0, 1000);
    let profile = json!({"name": "1g.5gb", "compute": 1, "size": 1, "memory": 4864, "starts": [0], "most": 7});
    dynamic["mig"] = json!({"compute": 7, "profiles": [profile], "instances": []});
    check(
        &[dynamic],
        Ok("{gpus: [{select: {all: true}, mode: mig, dynamic: true, allow: [1g.5gb]}]}"),
    );
}

#[test]
fn mig_15_what_is_kept_for_namespaces_is_shown() {
    let kept = |mut unit: Value| {
        unit["reserved"] = json!(["monitoring"]);
        unit
    };
    let instances = [
        kept(part("1g.5gb", 0, "exclusive", 1)),
        kept(part("1g.5gb", 1, "exclusive", 1)),
        part("1g.5gb", 2, "exclusive", 1),
    ];
    check(
        &instances,
        Ok(
            "{gpus: [{select: {all: true}, reserve: [{profile: 1g.5gb, count: 2, namespaces: [monitoring]}], mode: mig, layout: [{profile: 1g.5gb, count: 3}]}]}",
        ),
    );
    let whole = |index| card(index, "exclusive", "nvidia.com/gpu", 1, 1000);
    check(
        &[whole(0), kept(whole(1))],
        Ok("{gpus: [
            {select: {uuid: GPU-00000000-0000-0000-0000-000000000000}, mode: exclusive},
            {select: {uuid: GPU-00000001-0000-0000-0000-000000000000}, reserve: [{namespaces: [monitoring]}], mode: exclusive}]}"),
    );
    let mut dynamic = card(1, "mig", "nvidia.com/gpu", 0, 1000);
    let profile = json!({"name": "1g.5gb", "compute": 1, "size": 1, "memory": 4864, "starts": [0, 1], "most": 7});
    let place = json!({"profile": "1g.5gb", "start": 1, "namespaces": ["monitoring"]});
    dynamic["mig"] =
        json!({"compute": 7, "profiles": [profile], "instances": [], "reserved": [place]});
    check(
        &[dynamic],
        Ok(
            "{gpus: [{select: {all: true}, reserve: [{profile: 1g.5gb, namespaces: [monitoring]}], mode: mig, dynamic: true, allow: [1g.5gb]}]}",
        ),
    );
}
