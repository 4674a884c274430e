//! The list of devices that the kubelet gets of a resource: one for each replica.

use std::collections::BTreeSet;

use aliquot_core::inventory::{self, Gpu, Health};

use crate::gpus::allocatable::{parent_gpu, replicas_by_resource};
use crate::gpus::inventory::PublishedNode;
use crate::kubelet::proto::v1beta1::{Device, NumaNode, TopologyInfo};
use crate::kubelet::proto::{HEALTHY, UNHEALTHY};
use aliquot_node_state::device_id::{DeviceIds, MAX_ID};

/// The devices of a resource to advertise to the kubelet, one for each replica. An id that is too
/// long for the kubelet is left out. Free replicas of an unhealthy device are unhealthy, and so are
/// those of a GPU whose mode is being switched, before its instances end one by one. Replicas that
/// living pods use are healthy, whatever happened to their device, and stay until the pods
/// end: otherwise the kubelet would count these pods against replicas of other devices. A replica
/// in use under an earlier resource name is not advertised under the new one. A node that is being
/// cleaned up has none.
pub(crate) fn plugin_devices(node: &PublishedNode, resource: &str) -> Vec<Device> {
    if node.cleaning_up {
        return Vec::new();
    }
    let nothing = DeviceIds::new();
    let allocated = node.allocated_ids.get(resource).unwrap_or(&nothing);
    let policy = node.inventory.topology_policy.as_str();
    let mut replicas = Vec::new();
    let mut advertised = BTreeSet::new();
    for gpu in &node.inventory.gpus {
        let layout = node.layout.gpus.get(parent_gpu(gpu));
        let offers = gpu.health == Health::Ok && layout.is_some_and(|layout| !layout.switching);
        for of_resource in replicas_by_resource(gpu)
            .iter()
            .filter(|o| o.resource == resource)
        {
            for &number in &of_resource.numbers {
                let id = format!("{}::{number}", gpu.uuid);
                // Dynamic MIG has the same numbers under several resources.
                if gpu.mode != inventory::Mode::Mig && is_allocated_elsewhere(node, resource, &id) {
                    continue;
                }
                let healthy = offers || allocated.contains(&id);
                advertised.insert(id.clone());
                replicas.push(device(id, healthy, replica_topology(gpu, policy)));
            }
        }
    }
    let retained = allocated.iter().filter(|id| !advertised.contains(*id));
    replicas.extend(retained.map(|id| device(id.clone(), true, None)));
    replicas.retain(|replica| replica.id.len() <= MAX_ID);
    replicas
}

fn is_allocated_elsewhere(node: &PublishedNode, resource: &str, id: &str) -> bool {
    let mut others = node
        .allocated_ids
        .iter()
        .filter(|(name, _)| *name != resource);
    others.any(|(_, ids)| ids.contains(id))
}

/// The topology of a device's replicas: its NUMA node where the kubelet aligns by it, otherwise
/// nothing; the kubelet would prefer replicas of other devices than the scheduler allocated.
fn replica_topology(device: &Gpu, policy: &str) -> Option<TopologyInfo> {
    let aligns = matches!(policy, "best-effort" | "restricted" | "single-numa-node");
    let id = i64::from(device.numa.filter(|_| aligns)?);
    let nodes = vec![NumaNode { id }];
    Some(TopologyInfo { nodes })
}

fn device(id: String, healthy: bool, topology: Option<TopologyInfo>) -> Device {
    Device {
        id,
        health: if healthy { HEALTHY } else { UNHEALTHY }.to_owned(),
        topology,
    }
}

#[cfg(test)]
#[path = "device_list_tests.rs"]
mod tests;
