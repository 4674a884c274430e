//! From devices to labels.

use aliquot_core::Mib;
use aliquot_core::mig::published::{DynamicMig, Mig};
use aliquot_core::mig::table;

use super::*;
use crate::testing::{RESOURCE, facts, fixed_instance, gpu};

const MODEL: &str = "NVIDIA A100-SXM4-40GB";

/// A node with physical GPUs `GPU-0`, `GPU-1`, … of these products.
fn node(products: &[&str]) -> DriverInventory {
    let names: Vec<String> = (0..products.len()).map(|n| format!("GPU-{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut facts = facts(&names);
    for (gpu, product) in facts.gpus.iter_mut().zip(products) {
        gpu.model = (*product).to_owned();
        gpu.memory = Mib(40_960);
        gpu.mig.capable = true;
    }
    facts
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
    let all = node_labels(&inventory, &node(products), RESOURCE);
    for (name, value) in expected {
        let found = all.get(&format!("{PREFIX}{name}"));
        let found = found.map_or("-", String::as_str);
        assert_eq!(found, *value, "{name}: {all:#?}");
    }
}

#[test]
fn counts_gpus_by_product_and_mode() {
    let mut odd = device(0, Mode::Exclusive, 1);
    odd.model = "Tesla T4".to_owned();
    let devices = vec![odd, device(1, Mode::Vgpu, 10), device(2, Mode::Vgpu, 10)];
    let expected = [
        ("product.Tesla-T4", "1"),
        ("product.NVIDIA-A100-SXM4-40GB", "2"),
        // With what the driver reserves.
        ("memory.NVIDIA-A100-SXM4-40GB", "40960"),
        ("mode.exclusive", "1"),
        ("mode.vgpu", "2"),
        ("mig.strategy", "-"),
    ];
    check(&["Tesla T4", MODEL, MODEL], devices, &expected);
    check(&[], Vec::new(), &[("mig.capable", "-")]);
}

#[test]
fn mig_3_labels_product_with_single_mig_profile() {
    let seven = (0..7).map(|_| instance(0, "1g.5gb", Mode::Exclusive, 1, RESOURCE));
    let expected = [
        ("mig-1g.5gb.product", "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"),
        ("mig-1g.5gb.count", "7"),
        ("mig.strategy", "single"),
        ("mode.mig", "1"),
    ];
    check(&[MODEL], seven.collect(), &expected);
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
        ("mig.capable", "true"),
        ("mig.strategy", "mixed"),
        ("mig-1g.5gb.count", "2"),
        ("mig-1g.5gb.product", small),
        ("mig-3g.20gb.count", "1"),
        ("mig-1g.5gb.me.product", &media),
        ("mode.mig", "1"),
        ("mode.vgpu", "1"),
    ];
    check(&[MODEL, MODEL], devices, &expected);
    let mut dynamic = device(0, Mode::Mig, 0);
    dynamic.mig = Some(Mig::Dynamic(DynamicMig {
        geometry: table::geometry(MODEL).expect("known"),
        instances: Vec::new(),
        reserved: Vec::new(),
    }));
    let expected = [
        ("mig-1g.5gb.most", "7"),
        ("mig-3g.20gb.most", "2"),
        ("mig.strategy", "mixed"),
    ];
    check(&[MODEL], vec![dynamic], &expected);
}

#[test]
fn ts_12_marks_time_sliced_instances_as_shared() {
    let shared = "NVIDIA-A100-SXM4-40GB-MIG-3g.20gb-SHARED";
    let plain = "NVIDIA-A100-SXM4-40GB-MIG-3g.20gb";
    for (resource, product) in [
        ("nvidia.com/mig-3g.20gb", shared),
        (RESOURCE, shared),
        ("nvidia.com/halves", plain),
    ] {
        let two = (0..2).map(|_| instance(0, "3g.20gb", Mode::Timeslice, 3, resource));
        let expected = [("mig-3g.20gb.product", product), ("mig-3g.20gb.count", "2")];
        check(&[MODEL], two.collect(), &expected);
    }
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
    let key = format!("product.{}", label_value(&long));
    let expected = [("mode.vgpu", "1"), (key.as_str(), "-")];
    check(&[&long], vec![device], &expected);
}

#[test]
fn writes_restores_and_removes_own_labels() {
    const MODE: &str = "aliquot.dev/mode.vgpu";
    const OLD: &str = "aliquot.dev/mode.mps";
    const COUNT: &str = "nvidia.com/gpu.count";
    let check = |labels: &Value, owned: Option<&str>, expected: &Value| {
        let annotations = owned.map(|keys| json!({OWNED: keys}));
        let node = json!({"metadata": {"labels": labels, "annotations": annotations}});
        let view = NodeView::read(&serde_json::from_value(node).expect("a node"));
        let desired = BTreeMap::from([(MODE.to_owned(), "2".to_owned())]);
        let found = patch(&desired, &view).map_or(Value::Null, |patch| {
            let metadata = &patch["metadata"];
            json!([metadata["labels"], metadata["annotations"][OWNED]])
        });
        assert_eq!(found, *expected, "{view:?}");
    };
    let set = json!([{MODE: "2"}, MODE]);
    check(&json!({}), None, &set);
    check(&json!({MODE: "2"}), Some(MODE), &Value::Null);
    check(&json!({MODE: "3"}), Some(MODE), &set);
    let both = json!({MODE: "2", OLD: "1"});
    let owned = format!("{MODE},{OLD}");
    check(&both, Some(&owned), &json!([{OLD: null}, MODE]));
    // Those of others stay, whatever the annotation lists.
    check(&both, Some(MODE), &Value::Null);
    let owned = format!("{MODE},{COUNT}");
    let theirs = json!({MODE: "2", COUNT: "1"});
    check(&theirs, Some(&owned), &json!([{}, MODE]));
}
