//! HAMi 4.11 and 3.1: its annotations.

use super::*;
use crate::allocation::{Allocation, Grant};
use crate::hami::{decode, encode, register, uses};
use crate::inventory::{Health, Mode};
use crate::units::{Mib, Percent};

fn check_uses(text: &str, stages: &[Stage], expected: &str) {
    let found = match uses(text, stages) {
        Ok(devices) => devices
            .iter()
            .map(|(gpu, used)| {
                format!("{gpu}={}x{}/{}", used.replicas, used.memory.0, used.cores.0)
            })
            .collect::<Vec<_>>()
            .join(" "),
        Err(error) => error.to_string(),
    };
    assert_eq!(found, expected, "{text:?}");
}

#[test]
fn counts_hami_allocation_by_kubernetes_rule_or_errors() {
    use Stage::{App, Init, Sidecar};
    check_uses(";GPU-a,NVIDIA,3000,30:;", &[Init, App], "GPU-a=1x3000/30");
    check_uses(
        "GPU-a,NVIDIA,3000,30:GPU-b,NVIDIA,1,2:",
        &[App],
        "GPU-a=1x3000/30 GPU-b=1x1/2",
    );
    let twice = "GPU-a,NVIDIA,3000,30:;GPU-a,NVIDIA,1000,50:;";
    check_uses(twice, &[App, App], "GPU-a=2x4000/80");
    check_uses(twice, &[Init, App], "GPU-a=1x3000/50");
    // HAMi 2.10 counts a sidecar as an init container; it runs beside the app.
    check_uses(twice, &[Sidecar, App], "GPU-a=2x4000/80");
    // Two instances of one device.
    check_uses(
        "GPU-a[0-0],NVIDIA,5,1:GPU-a[0-1],NVIDIA,5,1:;",
        &[Init],
        "GPU-a=2x10/2",
    );
    // An older HAMi lists app containers only.
    check_uses(
        "GPU-a,NVIDIA,3000,30,later:;",
        &[Init, App],
        "GPU-a=1x3000/30",
    );
    check_uses("", &[App], "");
    check_uses(";;", &[App], "");
    check_uses(
        twice,
        &[App],
        "shares of 2 containers; expected: one list for each of the pod's 1",
    );
    for share in [
        "GPU-a",
        "GPU-a,NVIDIA,3000",
        "GPU-a,NVIDIA,-1,0",
        "GPU-a,NVIDIA,1,x",
        ",NVIDIA,1,1",
    ] {
        let error = format!("{share:?} is not a share; expected: UUID,TYPE,MIB,PERCENT");
        check_uses(&format!("{share}:;"), &[App], &error);
    }
}

#[test]
fn reads_back_the_hami_annotation_it_writes() {
    let grant = |gpu: &str, memory| Grant {
        resource: "nvidia.com/gpu".to_owned(),
        gpu: gpu.into(),
        memory: Mib(memory),
        cores: Percent(30),
        replicas: 1,
        burst: None,
        mig: None,
    };
    let allocation = Allocation {
        v: 1,
        node: "n".into(),
        containers: [("a".to_owned(), vec![grant("GPU-0", 1), grant("GPU-1", 2)])].into(),
        init: [("z".to_owned(), vec![grant("GPU-0", 9)])].into(),
        priority: 1,
    };
    let text = encode(&allocation, ["z", "none", "a"].into_iter());
    assert_eq!(
        text,
        "GPU-0,NVIDIA,9,30:;;GPU-0,NVIDIA,1,30:GPU-1,NVIDIA,2,30:;"
    );
    let lengths: Vec<_> = decode(&text).unwrap().iter().map(Vec::len).collect();
    assert_eq!(lengths, [1, 0, 2]);
}

#[test]
fn reads_fields_omitted_by_hami_as_zero() {
    let text = r#"[
        {"id":"GPU-b","index":1,"count":10,"devmem":81920,"devcore":100,"type":"NVIDIA A100","numa":1,"mode":"mig","health":true,"migProfiles":[]},
        {"id":"GPU-a","count":10,"devmem":81920,"devcore":100,"type":"NVIDIA A100","mode":"hami-core"}]"#;
    let inventory = register(text).unwrap();
    let shown: Vec<_> = inventory
        .gpus
        .iter()
        .map(|gpu| {
            (
                gpu.uuid.as_str(),
                gpu.index,
                gpu.numa,
                gpu.mode,
                gpu.health == Health::Ok,
            )
        })
        .collect();
    let expected = [
        ("GPU-a", 0, Some(0), Mode::Vgpu, false),
        ("GPU-b", 1, Some(1), Mode::Mig, true),
    ];
    assert_eq!(shown, expected);
    assert_eq!(inventory.gpus[1].scaled, Mib(81_920));
    assert!(inventory.reads.is_empty());
    assert!(register(r#"[{"id":"GPU-a"},{"id":"GPU-a"}]"#).is_err());
    assert!(register("GPU-a,10,81920,100,NVIDIA A100,0:").is_err());
}
