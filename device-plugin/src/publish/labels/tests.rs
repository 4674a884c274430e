//! From devices to labels.

use aliquot_core::Percent;
use aliquot_core::inventory::EvenShare;
use aliquot_core::mig::published::{DynamicMig, Mig};
use aliquot_core::mig::table;

use super::*;
use crate::testing::{RESOURCE, facts, fixed_instance, gpu};

const MODEL: &str = "NVIDIA A100-SXM4-40GB";

/// A node with physical GPUs `GPU-0`, `GPU-1`, … of these products.
fn features(products: &[&str]) -> Features {
    let names: Vec<String> = (0..products.len()).map(|n| format!("GPU-{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut facts = facts(&names);
    for (gpu, product) in facts.gpus.iter_mut().zip(products) {
        gpu.model = (*product).to_owned();
        gpu.memory = Mib(40_960);
        gpu.mig.capable = true;
    }
    Features::of(&facts)
}

/// GPU `GPU-<n>` in a mode.
fn device(n: u32, mode: Mode, replicas: u32) -> Gpu {
    Gpu {
        model: MODEL.to_owned(),
        // Without what the driver reserves.
        memory: Mib(40_389),
        mode,
        replicas,
        ..gpu(&format!("GPU-{n}"), n)
    }
}

/// An instance of GPU `GPU-<n>`.
fn instance(n: u32, profile: &str, mode: Mode, replicas: u32, resource: &str) -> Gpu {
    Gpu {
        uuid: format!("MIG-{n}-{replicas}").as_str().into(),
        memory: Mib(19_968),
        mig: Some(fixed_instance(&format!("GPU-{n}"), profile)),
        resource: resource.to_owned(),
        ..device(n, mode, replicas)
    }
}

/// An instance for one container, under the resource of its profile.
fn own_instance(n: u32, profile: &str) -> Gpu {
    let resource = format!("nvidia.com/mig-{}", profile.replace('+', "."));
    instance(n, profile, Mode::Exclusive, 1, &resource)
}

/// The labels of these devices on GPUs of these products; `-` where there is none.
fn check(products: &[&str], devices: Vec<Gpu>, expected: &[(&str, &str)]) {
    let inventory = Inventory {
        driver: "580.82.07".to_owned(),
        gpus: devices,
        ..crate::testing::inventory(&[])
    };
    let all = node_labels(&inventory, &features(products), RESOURCE);
    for (key, value) in expected {
        let key = key.replacen("nv/", "nvidia.com/", 1);
        let key = key.replacen("our/", "aliquot.dev/", 1);
        let found = all.get(&key).map_or("-", String::as_str);
        assert_eq!(found, *value, "{key} of {all:#?}");
    }
}

#[test]
fn labels_node_of_equal_gpus() {
    let devices = vec![device(0, Mode::Vgpu, 10), device(1, Mode::Vgpu, 10)];
    let expected = [
        ("nv/gpu.count", "2"),
        ("nv/gpu.product", "NVIDIA-A100-SXM4-40GB"),
        ("nv/gpu.memory", "40960"),
        ("nv/gpu.replicas", "10"),
        ("nv/gpu.sharing-strategy", "vgpu"),
        ("nv/mig.capable", "true"),
        ("nv/mig.strategy", "-"),
        ("nv/mps.capable", "false"),
        ("our/product.NVIDIA-A100-SXM4-40GB", "2"),
        ("our/memory.NVIDIA-A100-SXM4-40GB", "40960"),
        ("our/mode.vgpu", "2"),
    ];
    check(&[MODEL, MODEL], devices, &expected);
    check(&[], Vec::new(), &[("nv/gpu.count", "-")]);
}

#[test]
fn marks_shared_product_unless_resource_is_renamed() {
    let shared = [
        ("nv/gpu.product", "NVIDIA-A100-SXM4-40GB-SHARED"),
        ("nv/gpu.replicas", "4"),
        ("nv/gpu.sharing-strategy", "time-slicing"),
    ];
    check(&[MODEL], vec![device(0, Mode::Timeslice, 4)], &shared);
    let mut renamed = device(0, Mode::Timeslice, 4);
    renamed.resource = "nvidia.com/gpu.shared".to_owned();
    let plain = [
        ("nv/gpu.product", "NVIDIA-A100-SXM4-40GB"),
        ("nv/gpu.replicas", "4"),
    ];
    check(&[MODEL], vec![renamed], &plain);
}

#[test]
fn labels_mps_memory_per_client() {
    let mut device = device(0, Mode::Mps, 4);
    let memory = Mib(10_240);
    let cores = Percent(25);
    device.even_share = Some(EvenShare { memory, cores });
    let expected = [
        ("nv/gpu.memory", "10240"),
        ("nv/mps.capable", "true"),
        ("nv/gpu.sharing-strategy", "mps"),
        ("our/memory.NVIDIA-A100-SXM4-40GB", "40960"),
    ];
    check(&[MODEL], vec![device], &expected);
}

#[test]
fn labels_mixed_node_by_most_common_gpu() {
    let mut odd = device(0, Mode::Exclusive, 1);
    odd.model = "Tesla T4".to_owned();
    let devices = vec![odd, device(1, Mode::Vgpu, 10), device(2, Mode::Vgpu, 10)];
    let expected = [
        ("nv/gpu.count", "3"),
        ("nv/gpu.product", "NVIDIA-A100-SXM4-40GB"),
        ("our/product.Tesla-T4", "1"),
        ("our/product.NVIDIA-A100-SXM4-40GB", "2"),
        ("our/mode.exclusive", "1"),
        ("our/mode.vgpu", "2"),
    ];
    check(&["Tesla T4", MODEL, MODEL], devices, &expected);
}

#[test]
fn mig_3_labels_product_with_single_mig_profile() {
    let seven = (0..7).map(|_| instance(0, "1g.5gb", Mode::Exclusive, 1, RESOURCE));
    let expected = [
        ("nv/gpu.product", "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"),
        ("nv/gpu.count", "7"),
        ("nv/gpu.replicas", "1"),
        ("nv/gpu.memory", "19968"),
        ("nv/gpu.slices.gi", "1"),
        ("nv/mig.strategy", "single"),
        ("our/mode.mig", "1"),
    ];
    check(&[MODEL], seven.collect(), &expected);
    let unlike = vec![
        instance(0, "1g.5gb", Mode::Exclusive, 1, RESOURCE),
        instance(1, "2g.10gb", Mode::Exclusive, 1, RESOURCE),
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
fn mig_9_labels_strategy_capability_and_instances() {
    let devices = vec![
        device(0, Mode::Vgpu, 10),
        own_instance(1, "1g.5gb"),
        own_instance(1, "1g.5gb"),
        own_instance(1, "3g.20gb"),
        own_instance(1, "1g.5gb+me"),
    ];
    let small = "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb";
    let media = format!("{small}.me");
    let expected = [
        ("nv/mig.capable", "true"),
        ("nv/mig.strategy", "mixed"),
        ("nv/mig-1g.5gb.count", "2"),
        ("nv/mig-1g.5gb.product", small),
        ("nv/mig-1g.5gb.replicas", "1"),
        ("nv/mig-1g.5gb.sharing-strategy", "none"),
        ("nv/mig-3g.20gb.count", "1"),
        ("nv/mig-3g.20gb.memory", "19968"),
        ("nv/mig-3g.20gb.slices.ci", "3"),
        ("nv/mig-1g.5gb.me.product", &media),
        ("nv/gpu.product", "NVIDIA-A100-SXM4-40GB"),
        ("nv/gpu.count", "2"),
        ("our/mode.mig", "1"),
        ("our/mode.vgpu", "1"),
    ];
    check(&[MODEL, MODEL], devices, &expected);
    let mut dynamic = device(0, Mode::Mig, 0);
    dynamic.mig = Some(Mig::Dynamic(DynamicMig {
        geometry: table::geometry(MODEL).expect("known"),
        instances: Vec::new(),
        reserved: Vec::new(),
    }));
    let expected = [
        ("our/mig-1g.5gb.most", "7"),
        ("our/mig-3g.20gb.most", "2"),
        ("nv/mig.strategy", "mixed"),
        ("nv/gpu.product", "NVIDIA-A100-SXM4-40GB"),
    ];
    check(&[MODEL], vec![dynamic], &expected);
}

#[test]
fn ts_12_marks_time_sliced_instances_as_shared() {
    let resource = "nvidia.com/mig-3g.20gb";
    let two = (0..2).map(|_| instance(0, "3g.20gb", Mode::Timeslice, 3, resource));
    let product = "NVIDIA-A100-SXM4-40GB-MIG-3g.20gb-SHARED";
    let expected = [
        ("nv/mig-3g.20gb.product", product),
        ("nv/mig-3g.20gb.count", "2"),
        ("nv/mig-3g.20gb.replicas", "3"),
        ("nv/mig-3g.20gb.sharing-strategy", "time-slicing"),
    ];
    check(&[MODEL], two.collect(), &expected);
    let single = (0..2).map(|_| instance(0, "3g.20gb", Mode::Timeslice, 3, RESOURCE));
    check(&[MODEL], single.collect(), &[("nv/gpu.product", product)]);
}

#[test]
fn writes_only_values_that_api_server_accepts() {
    for (words, expected) in [
        ("NVIDIA H100 80GB (rev. 2)", "NVIDIA-H100-80GB-rev.-2"),
        ("--odd--", "odd"),
        ("", ""),
    ] {
        assert_eq!(label_value(words), expected);
    }
    let long = format!("NVIDIA {}", "x".repeat(80));
    assert_eq!(label_value(&long).len(), MAX_LABEL_LENGTH);
    // Too long for a key: that label is left out.
    let mut device = device(0, Mode::Vgpu, 10);
    device.model.clone_from(&long);
    let key = format!("our/product.{}", label_value(&long));
    let expected = [("nv/gpu.count", "1"), (key.as_str(), "-")];
    check(&[&long], vec![device], &expected);
}
