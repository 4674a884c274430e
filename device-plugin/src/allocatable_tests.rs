//! From facts and modes to devices and their replicas.

use aliquot_core::Scaling;
use aliquot_core::inventory::Mode as Shared;
use aliquot_profiles::mode::{Exclusive, Timeslice, Vgpu};

use super::*;
use crate::device_failures::NodeFailures;
use crate::inventory::{LayoutUpdate, NodePublisher};
use crate::testing::{RESOURCE, facts, layout_of};

fn health(uuid: &str, health: nvml::DriverHealth) -> nvml::DeviceHealth {
    nvml::DeviceHealth {
        uuid: uuid.to_owned(),
        health,
    }
}

fn shown(node: &PublishedNode, resource: &str) -> Vec<String> {
    let replicas = plugin_devices(node, resource).into_iter();
    let mark = |health: &str| if health == HEALTHY { "" } else { "!" };
    replicas
        .map(|replica| format!("{}{}", mark(&replica.health), replica.id))
        .collect()
}

/// Three GPUs: vgpu with two replicas, an exclusive one, and time-slicing with three replicas under
/// a resource name of its own.
fn three() -> NodeLayout {
    let shared = Timeslice {
        rename: Some("nvidia.com/gpu.shared".to_owned()),
        strict: true,
        ..Timeslice::new(3)
    };
    let modes = [
        Mode::Vgpu(Vgpu {
            split: Some(2),
            memory_scaling: Some(Scaling::parse("1.5").expect("good")),
            ..Vgpu::default()
        }),
        Mode::Exclusive(Exclusive::default()),
        Mode::Timeslice(shared),
    ];
    let names = ["GPU-a", "GPU-b", "GPU-c"];
    NodeLayout {
        default_resource: RESOURCE.to_owned(),
        gpus: names
            .map(GpuUuid::from)
            .into_iter()
            .zip(modes.map(GpuLayout::serving))
            .collect(),
    }
}

#[test]
fn mode_determines_allocatable_device() {
    let facts = facts(&["GPU-a", "GPU-b", "GPU-c", "GPU-new"]);
    let devices = allocatable_devices(&facts, &[], &three());
    let actual: Vec<_> = devices
        .iter()
        .map(|u| {
            (
                u.uuid.as_str(),
                u.mode,
                u.replicas,
                u.scaled.0,
                u.resource.as_str(),
                u.strict,
            )
        })
        .collect();
    assert_eq!(
        actual,
        [
            ("GPU-a", Shared::Vgpu, 2, 15_000, RESOURCE, false),
            ("GPU-b", Shared::Exclusive, 1, 10_000, RESOURCE, false),
            (
                "GPU-c",
                Shared::Timeslice,
                3,
                10_000,
                "nvidia.com/gpu.shared",
                true
            ),
        ]
    );
}

/// A GPU of 10,000 MiB, of which the driver reserves 500.
#[test]
fn promises_memory_without_what_the_driver_reserves() {
    let mut facts = facts(&["GPU-a", "GPU-b", "GPU-c"]);
    for gpu in &mut facts.gpus {
        gpu.reserved = Some(aliquot_core::Mib(500));
    }
    let mut layout = three();
    let mps = Mode::Mps(aliquot_profiles::mode::Mps::new(2));
    layout.gpus.insert("GPU-c".into(), GpuLayout::serving(mps));
    let devices = allocatable_devices(&facts, &[], &layout);
    let memory = devices.iter().map(|gpu| (gpu.memory.0, gpu.scaled.0));
    let expected = [(9_500, 14_250), (9_500, 9_500), (9_500, 9_500)];
    assert_eq!(memory.collect::<Vec<_>>(), expected);
    let share = devices[2].even_share.expect("by MPS");
    assert_eq!(share.memory, aliquot_core::Mib(4_750));
    // An old driver does not report it.
    facts.gpus[0].reserved = None;
    let devices = allocatable_devices(&facts, &[], &layout);
    assert_eq!(devices[0].memory, aliquot_core::Mib(10_000));
}

#[test]
fn keeps_replicas_of_changing_gpu_cordoned() {
    let mut changing = three();
    let why = "changes from exclusive to vgpu".to_owned();
    let gpu = changing
        .gpus
        .get_mut(&GpuUuid::from("GPU-b"))
        .expect("there");
    gpu.cordon = Some(why.clone());
    let published = NodePublisher::new(facts(&["GPU-a", "GPU-b"]), Vec::new(), changing);
    let node = published.get();
    assert_eq!(node.inventory.gpus[1].cordon, Some(why));
    assert_eq!(shown(&node, RESOURCE), ["GPU-a::0", "GPU-a::1", "GPU-b::0"]);
}

#[test]
fn advertises_replicas_that_pods_still_use() {
    let facts = facts(&["GPU-a", "GPU-b", "GPU-c"]);
    let published = NodePublisher::new(facts, Vec::new(), three());
    let names = ["nvidia.com/gpu", "nvidia.com/gpu.shared"].map(str::to_owned);
    assert_eq!(resources(&published.get()), names.clone().into());
    let allocated = |ids: &[&str]| -> AllocatedIds {
        let ids = ids.iter().map(|&id| id.to_owned()).collect();
        [(names[1].clone(), ids)].into()
    };
    let check = |ids: &[&str], expected: &[&str], beyond: bool| {
        published.set_layout(LayoutUpdate {
            layout: layout_of(&["GPU-a", "GPU-b"]),
            allocated_ids: Some(allocated(ids)),
            evict: Vec::new(),
            profile: None,
            removed_resources: BTreeSet::new(),
        });
        let node = published.get();
        assert_eq!(shown(&node, &names[1]), expected, "{ids:?}");
        assert_eq!(resources(&node).contains(&names[1]), beyond, "{ids:?}");
        assert_eq!(node.has_retained_replicas(), beyond, "{ids:?}");
    };
    check(&["GPU-c::1"], &["GPU-c::1"], true);
    check(&[], &[], false);
}

#[test]
fn replica_health_follows_device_health() {
    let mut facts = facts(&["GPU-a", "GPU-b", "GPU-c"]);
    facts.gpus[2].mig.enabled = true;
    let sick = vec![
        health("GPU-a", nvml::DriverHealth::Xid(79)),
        health("GPU-b", nvml::DriverHealth::Ok),
    ];
    let layout = layout_of(&["GPU-a", "GPU-b", "GPU-c"]);
    let published = NodePublisher::new(facts, sick, layout);
    let node = published.get();
    assert_eq!(
        node.inventory.gpus[0].health,
        Health::Unhealthy("xid 79".to_owned())
    );
    let unregistered = nvml::DriverHealth::FabricNotReady(nvml::UnfinishedRegistration::NotStarted);
    assert_eq!(
        health_of("GPU-a", &[health("GPU-a", unregistered)]),
        Some(Health::Unhealthy(
            "fabric registration not started".to_owned()
        ))
    );
    assert_eq!(
        shown(&node, RESOURCE),
        ["!GPU-a::0", "!GPU-a::1", "GPU-b::0", "GPU-b::1"]
    );
}

#[test]
fn keeps_allocated_replica_healthy_on_failed_gpu() {
    let facts = facts(&["GPU-a", "GPU-b"]);
    let published = NodePublisher::new(facts.clone(), Vec::new(), layout_of(&["GPU-a", "GPU-b"]));
    let sick = [health("GPU-a", nvml::DriverHealth::Xid(79))];
    let check = |allocated: &[&str], expected: &[&str]| {
        let ids = allocated.iter().map(|&id| id.to_owned()).collect();
        let allocated = [(RESOURCE.to_owned(), ids)].into();
        published.set_devices(&facts, &sick, NodeFailures::default(), allocated);
        let all = shown(&published.get(), RESOURCE).into_iter();
        let healthy: Vec<String> = all.filter(|id| !id.starts_with('!')).collect();
        assert_eq!(healthy, expected);
    };
    check(&[], &["GPU-b::0", "GPU-b::1"]);
    check(&["GPU-a::1"], &["GPU-a::1", "GPU-b::0", "GPU-b::1"]);
    check(&["GPU-b::1"], &["GPU-b::0", "GPU-b::1"]);
}

#[test]
fn hides_replicas_still_allocated_under_old_name() {
    let mut renamed = layout_of(&["GPU-a"]);
    let slices = Timeslice {
        rename: Some("nvidia.com/gpu.shared".to_owned()),
        ..Timeslice::new(3)
    };
    renamed
        .gpus
        .insert("GPU-a".into(), GpuLayout::serving(Mode::Timeslice(slices)));
    let published = NodePublisher::new(facts(&["GPU-a"]), Vec::new(), renamed);
    let allocated = |ids: &[&str]| {
        let ids: DeviceIds = ids.iter().map(|&id| id.to_owned()).collect();
        let allocated = AllocatedIds::from([(RESOURCE.to_owned(), ids)]);
        published.set_devices(&facts(&["GPU-a"]), &[], NodeFailures::default(), allocated);
        let node = published.get();
        [RESOURCE, "nvidia.com/gpu.shared"].map(|resource| shown(&node, resource))
    };
    assert_eq!(
        allocated(&["GPU-a::0", "GPU-a::1"]),
        [vec!["GPU-a::0", "GPU-a::1"], vec!["GPU-a::2"]]
    );
    assert_eq!(
        allocated(&[]),
        [vec![], vec!["GPU-a::0", "GPU-a::1", "GPU-a::2"]]
    );
}
