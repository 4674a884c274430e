//! From units to labels.

use aliquot_core::Percent;
use aliquot_core::inventory::Even;
use aliquot_core::mig::published::{Cut, Mig, Part};
use aliquot_core::mig::table;

use super::*;
use crate::testing::{RESOURCE, facts, gpu};

const MODEL: &str = "NVIDIA A100-SXM4-40GB";

/// A node with physical cards `GPU-0`, `GPU-1`, … of this many products.
fn features(products: &[&str]) -> Features {
    let names: Vec<String> = (0..products.len()).map(|n| format!("GPU-{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut facts = facts(&names);
    facts.cuda_version = Some((13, 0));
    for (card, product) in facts.cards.iter_mut().zip(products) {
        card.model = (*product).to_owned();
        card.memory = Mib(40_960);
        card.compute_capability = Some((8, 0));
        card.mig.capable = true;
    }
    Features::of(&facts)
}

/// Card `GPU-<n>` in a mode.
fn unit(n: u32, mode: Mode, seats: u32) -> Gpu {
    Gpu {
        model: MODEL.to_owned(),
        memory: Mib(40_960),
        mode,
        seats,
        ..gpu(&format!("GPU-{n}"), n)
    }
}

/// An instance of card `GPU-<n>`.
fn part(n: u32, profile: &str, mode: Mode, seats: u32, resource: &str) -> Gpu {
    let part = Part {
        parent: format!("GPU-{n}").as_str().into(),
        profile: profile.to_owned(),
        start: 0,
        gi: 1,
        ci: 0,
    };
    Gpu {
        uuid: format!("MIG-{n}-{seats}").as_str().into(),
        memory: Mib(19_968),
        mig: Some(Mig::Part(part)),
        resource: resource.to_owned(),
        ..unit(n, mode, seats)
    }
}

/// The labels of units on as many cards of these products; `-` where there is none.
fn check(products: &[&str], units: Vec<Gpu>, expected: &[(&str, &str)]) {
    let inventory = Inventory {
        driver: "580.82.07".to_owned(),
        gpus: units,
        ..crate::testing::inventory(&[])
    };
    let all = labels(&inventory, &features(products), RESOURCE);
    for (key, value) in expected {
        let key = key.replacen("nv/", "nvidia.com/", 1);
        let key = key.replacen("our/", "aliquot.dev/", 1);
        let found = all.get(&key).map_or("-", String::as_str);
        assert_eq!(found, *value, "{key} of {all:#?}");
    }
}

#[test]
fn a_node_of_equal_cards_has_the_labels_that_users_select_on() {
    let units = vec![unit(0, Mode::Vgpu, 10), unit(1, Mode::Vgpu, 10)];
    check(
        &[MODEL, MODEL],
        units,
        &[
            ("nv/gpu.count", "2"),
            ("nv/gpu.product", "NVIDIA-A100-SXM4-40GB"),
            ("nv/gpu.memory", "40960"),
            ("nv/gpu.replicas", "10"),
            ("nv/gpu.sharing-strategy", "vgpu"),
            ("nv/gpu.family", "ampere"),
            ("nv/gpu.compute.major", "8"),
            ("nv/gpu.compute.minor", "0"),
            ("nv/cuda.driver-version.full", "580.82.07"),
            ("nv/cuda.driver-version.revision", "07"),
            ("nv/cuda.driver.rev", "07"),
            ("nv/cuda.runtime-version.full", "13.0"),
            ("nv/cuda.runtime.major", "13"),
            ("nv/mig.capable", "true"),
            ("nv/mig.strategy", "-"),
            ("nv/mps.capable", "false"),
            ("our/product.NVIDIA-A100-SXM4-40GB", "2"),
            ("our/memory.NVIDIA-A100-SXM4-40GB", "40960"),
            ("our/mode.vgpu", "2"),
        ],
    );
    check(&[], Vec::new(), &[("nv/gpu.count", "-")]);
}

#[test]
fn shared_cards_say_so_unless_they_have_a_name_of_their_own() {
    let shared = [
        ("nv/gpu.product", "NVIDIA-A100-SXM4-40GB-SHARED"),
        ("nv/gpu.replicas", "4"),
        ("nv/gpu.sharing-strategy", "time-slicing"),
    ];
    check(&[MODEL], vec![unit(0, Mode::Timeslice, 4)], &shared);
    let mut renamed = unit(0, Mode::Timeslice, 4);
    renamed.resource = "nvidia.com/gpu.shared".to_owned();
    let plain = [
        ("nv/gpu.product", "NVIDIA-A100-SXM4-40GB"),
        ("nv/gpu.replicas", "4"),
    ];
    check(&[MODEL], vec![renamed], &plain);
}

#[test]
fn the_memory_of_an_mps_card_is_what_a_client_gets() {
    let mut unit = unit(0, Mode::Mps, 4);
    let memory = Mib(10_240);
    let cores = Percent(25);
    unit.even = Some(Even { memory, cores });
    let expected = [
        ("nv/gpu.memory", "10240"),
        ("nv/mps.capable", "true"),
        ("nv/gpu.sharing-strategy", "mps"),
        ("our/memory.NVIDIA-A100-SXM4-40GB", "40960"),
    ];
    check(&[MODEL], vec![unit], &expected);
}

#[test]
fn a_node_of_several_kinds_is_labelled_by_the_most_and_each_product_has_its_own() {
    let mut odd = unit(0, Mode::Exclusive, 1);
    odd.model = "Tesla T4".to_owned();
    let units = vec![odd, unit(1, Mode::Vgpu, 10), unit(2, Mode::Vgpu, 10)];
    check(
        &["Tesla T4", MODEL, MODEL],
        units,
        &[
            ("nv/gpu.count", "3"),
            ("nv/gpu.product", "NVIDIA-A100-SXM4-40GB"),
            ("our/product.Tesla-T4", "1"),
            ("our/product.NVIDIA-A100-SXM4-40GB", "2"),
            ("our/mode.exclusive", "1"),
            ("our/mode.vgpu", "2"),
        ],
    );
}

#[test]
fn mig_3_the_product_of_cards_cut_alike_ends_in_the_profile() {
    let seven = (0..7).map(|_| part(0, "1g.5gb", Mode::Exclusive, 1, RESOURCE));
    check(
        &[MODEL],
        seven.collect(),
        &[
            ("nv/gpu.product", "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"),
            ("nv/gpu.count", "7"),
            ("nv/gpu.replicas", "1"),
            ("nv/gpu.memory", "19968"),
            ("nv/gpu.slices.gi", "1"),
            ("nv/mig.strategy", "single"),
            ("nv/gpu.family", "ampere"),
            ("our/mode.mig", "1"),
        ],
    );
    let unlike = vec![
        part(0, "1g.5gb", Mode::Exclusive, 1, RESOURCE),
        part(1, "2g.10gb", Mode::Exclusive, 1, RESOURCE),
    ];
    let invalid = [
        ("nv/gpu.product", "NVIDIA-A100-SXM4-40GB-MIG-INVALID"),
        ("nv/gpu.count", "0"),
        ("nv/gpu.memory", "0"),
        ("nv/gpu.replicas", "0"),
    ];
    check(&[MODEL, MODEL], unlike, &invalid);
}

#[test]
fn mig_9_a_selector_finds_nodes_by_strategy_capability_and_instances() {
    let small = "nvidia.com/mig-1g.5gb";
    let units = vec![
        unit(0, Mode::Vgpu, 10),
        part(1, "1g.5gb", Mode::Exclusive, 1, small),
        part(1, "1g.5gb", Mode::Exclusive, 1, small),
        part(1, "3g.20gb", Mode::Exclusive, 1, "nvidia.com/mig-3g.20gb"),
        part(
            1,
            "1g.5gb+me",
            Mode::Exclusive,
            1,
            "nvidia.com/mig-1g.5gb.me",
        ),
    ];
    check(
        &[MODEL, MODEL],
        units,
        &[
            ("nv/mig.capable", "true"),
            ("nv/mig.strategy", "mixed"),
            ("nv/mig-1g.5gb.count", "2"),
            ("nv/mig-1g.5gb.product", "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"),
            ("nv/mig-1g.5gb.replicas", "1"),
            ("nv/mig-1g.5gb.sharing-strategy", "none"),
            ("nv/mig-3g.20gb.count", "1"),
            ("nv/mig-3g.20gb.memory", "19968"),
            ("nv/mig-3g.20gb.slices.ci", "3"),
            (
                "nv/mig-1g.5gb.me.product",
                "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb.me",
            ),
            ("nv/gpu.product", "NVIDIA-A100-SXM4-40GB"),
            ("nv/gpu.count", "2"),
            ("our/mode.mig", "1"),
            ("our/mode.vgpu", "1"),
        ],
    );
    let geometry = table::geometry(MODEL);
    let mut dynamic = unit(0, Mode::Mig, 0);
    dynamic.mig = geometry.map(|geometry| {
        let instances = Vec::new();
        Mig::Dynamic(Cut {
            geometry,
            instances,
            reserved: Vec::new(),
        })
    });
    let expected = [
        ("our/mig-1g.5gb.most", "7"),
        ("our/mig-3g.20gb.most", "2"),
        ("nv/mig.strategy", "mixed"),
        ("nv/gpu.product", "NVIDIA-A100-SXM4-40GB"),
    ];
    check(&[MODEL], vec![dynamic], &expected);
}

#[test]
fn ts_12_slices_of_instances_are_shared_in_the_product() {
    let resource = "nvidia.com/mig-3g.20gb";
    let two = (0..2).map(|_| part(0, "3g.20gb", Mode::Timeslice, 3, resource));
    let product = "NVIDIA-A100-SXM4-40GB-MIG-3g.20gb-SHARED";
    check(
        &[MODEL],
        two.collect(),
        &[
            ("nv/mig-3g.20gb.product", product),
            ("nv/mig-3g.20gb.count", "2"),
            ("nv/mig-3g.20gb.replicas", "3"),
            ("nv/mig-3g.20gb.sharing-strategy", "time-slicing"),
        ],
    );
    let single = (0..2).map(|_| part(0, "3g.20gb", Mode::Timeslice, 3, RESOURCE));
    check(&[MODEL], single.collect(), &[("nv/gpu.product", product)]);
}

#[test]
fn every_value_is_one_that_the_api_server_takes() {
    for (words, expected) in [
        ("NVIDIA RTX A6000", "NVIDIA-RTX-A6000"),
        (
            "NVIDIA H100 80GB HBM3 (rev. 2)",
            "NVIDIA-H100-80GB-HBM3-rev.-2",
        ),
        ("--odd--", "odd"),
        ("", ""),
    ] {
        assert_eq!(text(words), expected);
    }
    let long = format!("NVIDIA {}", "x".repeat(80));
    assert_eq!(text(&long).len(), LONGEST);
    // Too long for a key: that label is left out.
    let mut unit = unit(0, Mode::Vgpu, 10);
    unit.model.clone_from(&long);
    let key = format!("our/product.{}", text(&long));
    let expected = [("nv/gpu.count", "1"), (key.as_str(), "-")];
    check(&[&long], vec![unit], &expected);
}
