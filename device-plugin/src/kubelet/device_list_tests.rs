//! From the published node to the kubelet's list.

use aliquot_core::GpuUuid;
use aliquot_nvml as nvml;
use aliquot_profiles::Mode;
use aliquot_profiles::mode::Timeslice;

use super::*;
use crate::gpus::allocatable::{AllocatedIds, GpuLayout};
use crate::gpus::device_failures::NodeFailures;
use crate::gpus::inventory::{GpuReadings, NodePublisher};
use crate::testing::{RESOURCE, facts, health, layout_of, mixed_layout};

fn readings(facts: &nvml::DriverInventory, health: &[nvml::DeviceHealth]) -> GpuReadings {
    GpuReadings {
        facts: facts.clone(),
        health: health.to_vec(),
        failures: NodeFailures::default(),
    }
}

fn shown(node: &PublishedNode, resource: &str) -> Vec<String> {
    let replicas = plugin_devices(node, resource).into_iter();
    let mark = |health: &str| if health == HEALTHY { "" } else { "!" };
    replicas
        .map(|replica| format!("{}{}", mark(&replica.health), replica.id))
        .collect()
}

#[test]
fn withdraws_replicas_of_changing_gpu_when_switch_begins() {
    for (switching, of_changing) in [(false, "GPU-b::0"), (true, "!GPU-b::0")] {
        let mut changing = mixed_layout();
        let why = "changes from exclusive to vgpu".to_owned();
        let gpu = changing.gpus.get_mut(&GpuUuid::from("GPU-b"));
        let gpu = gpu.expect("there");
        (gpu.cordon, gpu.switching) = (Some(why.clone()), switching);
        let published = NodePublisher::new(facts(&["GPU-a", "GPU-b"]), Vec::new(), changing);
        let node = published.get();
        assert_eq!(node.inventory.gpus[1].cordon, Some(why));
        let expected = ["GPU-a::0", "GPU-a::1", of_changing];
        assert_eq!(shown(&node, RESOURCE), expected);
    }
}

#[test]
fn advertises_replicas_that_pods_still_use() {
    let facts = facts(&["GPU-a", "GPU-b", "GPU-c"]);
    let published = NodePublisher::new(facts, Vec::new(), mixed_layout());
    let names = ["nvidia.com/gpu", "nvidia.com/gpu.shared"].map(str::to_owned);
    assert_eq!(published.get().resources(), names.clone().into());
    let allocated = |ids: &[&str]| -> AllocatedIds {
        let ids = ids.iter().map(|&id| id.to_owned()).collect();
        [(names[1].clone(), ids)].into()
    };
    for used in [&["GPU-c::1"][..], &[]] {
        let layout = layout_of(&["GPU-a", "GPU-b"]);
        published.set_layout(layout, Some(allocated(used)));
        let node = published.get();
        assert_eq!(shown(&node, &names[1]), used);
        let is_used = !used.is_empty();
        assert_eq!(node.resources().contains(&names[1]), is_used);
        assert_eq!(node.has_retained_replicas(), is_used);
    }
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
    let xid = Health::Unhealthy("xid 79".to_owned());
    assert_eq!(node.inventory.gpus[0].health, xid);
    let expected = ["!GPU-a::0", "!GPU-a::1", "GPU-b::0", "GPU-b::1"];
    assert_eq!(shown(&node, RESOURCE), expected);
    let unregistered = nvml::DriverHealth::FabricNotReady(nvml::UnfinishedRegistration::NotStarted);
    let facts = &node.readings.facts;
    let readings = readings(facts, &[health("GPU-a", unregistered)]);
    published.set_readings(readings, AllocatedIds::new());
    let waiting = Health::Unhealthy("fabric registration not started".to_owned());
    assert_eq!(published.get().inventory.gpus[0].health, waiting);
}

#[test]
fn hides_replicas_still_allocated_under_old_name() {
    let mut renamed = layout_of(&["GPU-a"]);
    let slices = Timeslice {
        rename: Some("nvidia.com/gpu.shared".to_owned()),
        ..Timeslice::new(3)
    };
    let gpu = GpuLayout::serving(Mode::Timeslice(slices));
    renamed.gpus.insert("GPU-a".into(), gpu);
    let published = NodePublisher::new(facts(&["GPU-a"]), Vec::new(), renamed);
    let allocated = |ids: &[&str]| {
        let ids: DeviceIds = ids.iter().map(|&id| id.to_owned()).collect();
        let allocated = AllocatedIds::from([(RESOURCE.to_owned(), ids)]);
        published.set_readings(readings(&facts(&["GPU-a"]), &[]), allocated);
        let node = published.get();
        [RESOURCE, "nvidia.com/gpu.shared"].map(|resource| shown(&node, resource))
    };
    let all = ["GPU-a::0", "GPU-a::1", "GPU-a::2"];
    assert_eq!(allocated(&all[..2]), [&all[..2], &all[2..]]);
    assert_eq!(allocated(&[]), [&[], &all[..]]);
}
