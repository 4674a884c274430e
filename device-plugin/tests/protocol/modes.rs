//! GPUs of one node in different modes, over the whole protocol.

use std::collections::BTreeMap;

use aliquot_core::Grant;
use aliquot_core::inventory;
use aliquot_device_plugin::gpus::allocatable::{GpuLayout, NodeLayout};
use aliquot_device_plugin::kubelet::proto::v1beta1 as api;
use aliquot_node_state::accepted::AcceptedAllocation;
use aliquot_profiles::Mode;
use aliquot_profiles::mode::{Exclusive, Timeslice};
use serde_json::{Value, json};
use tonic::transport::Channel;

use crate::kubelet::prestart;
use crate::node::{Node, RESOURCE, bound, node, variables};
use api::device_plugin_client::DevicePluginClient;

const SHARED: &str = "nvidia.com/gpu.shared";

/// A GPU in mode exclusive beside one in mode timeslice for three containers, under two resources;
/// the plugin of each resource.
async fn two_modes() -> (Node, BTreeMap<String, DevicePluginClient<Channel>>) {
    let mut node = node();
    let mut plugins = BTreeMap::new();
    let default = node.kubelet.registration().await;
    let shared = Timeslice {
        rename: Some(SHARED.to_owned()),
        ..Timeslice::new(3)
    };
    let exclusive = Mode::Exclusive(Exclusive::default());
    let gpus = [("GPU-a", exclusive), ("GPU-b", Mode::Timeslice(shared))];
    let gpus = gpus.map(|(gpu, mode)| (gpu.into(), GpuLayout::serving(mode)));
    let layout = NodeLayout {
        default_resource: RESOURCE.to_owned(),
        gpus: gpus.into(),
        ..NodeLayout::default()
    };
    node.allocations.published.set_layout(layout, None);
    let more = node.kubelet.registration().await;
    for request in [default, more] {
        let name = request.resource_name.clone();
        plugins.insert(name, node.kubelet.connect(request).await);
    }
    (node, plugins)
}

fn grant(resource: &str, gpu: &str, memory: u64, cores: u32) -> Value {
    json!({"resource": resource, "gpu": gpu, "memory": memory, "cores": cores})
}

fn edits(spec: &Value) -> &Value {
    &spec["devices"][0]["containerEdits"]
}

#[tokio::test(flavor = "multi_thread")]
async fn merges_two_resources_into_one_environment() {
    let (mut node, mut plugins) = two_modes().await;
    let grants = json!({"main": [
        grant(RESOURCE, "GPU-a", 10_000, 100),
        grant(SHARED, "GPU-b", 0, 0),
    ]});
    let main = [json!({"name": "main"})];
    node.pods
        .apply(bound("u1", &grants, &json!({}), &main, &[]));
    let mut names = BTreeMap::new();
    for (resource, id) in [(SHARED, "GPU-b::2"), (RESOURCE, "GPU-a::0")] {
        let plugin = plugins.get_mut(resource).expect("registered");
        let ids = [id];
        let admitted = node
            .kubelet
            .admit_under(resource, plugin, "u1", "main", &ids);
        names.insert(resource, admitted.await);
    }
    // The first start writes the files for both.
    let plugin = plugins.get_mut(SHARED).expect("registered");
    prestart(plugin, &["GPU-b::2"]).await.expect("accepted");
    let specs = [RESOURCE, SHARED].map(|resource| node.spec(&names[resource]));
    let [first, second] = &specs;
    let visible = "ALIQUOT_VISIBLE_DEVICES=GPU-a,GPU-b";
    let expected = ["NVIDIA_VISIBLE_DEVICES=void", visible];
    assert_eq!(variables(first), expected);
    assert_eq!(variables(second), expected);
    assert_eq!(edits(first)["mounts"].as_array().map(Vec::len), Some(3));
    assert!(edits(second)["mounts"].is_null(), "{second}");
    let plugin = plugins.get_mut(RESOURCE).expect("registered");
    prestart(plugin, &["GPU-a::0"]).await.expect("served");
    let now = [RESOURCE, SHARED].map(|resource| node.spec(&names[resource]));
    assert_eq!(specs, now);
}

/// Starts the container of an accepted pod that cannot have its device any more, while both GPUs
/// wait for their pods. Only the GPU that it was on may delay the refusal.
async fn check_refusal(share: Grant, own: &str, other: &str, expected: &str) {
    let mut node = node().connected().await;
    node.run("u1", "GPU-a", 1, "GPU-a::0").await;
    {
        let mut store = node.allocations.store.lock();
        let accepted = store.get(&"u1".into()).expect("accepted");
        let mut accepted = AcceptedAllocation::clone(accepted);
        accepted.modes.insert("GPU-a".into(), inventory::Mode::Mig);
        let main = accepted.allocation.containers.get_mut("main");
        main.expect("a container")[0] = share;
        store.put(accepted).expect("stored");
    }
    let published = node.allocations.published.clone();
    let mut layout = published.get().layout.clone();
    for (restoring, refused) in [(own, 0), (other, 1)] {
        for (gpu, gpu_layout) in &mut layout.gpus {
            gpu_layout.cordon = Some("changes from mig to exclusive".to_owned());
            gpu_layout.restoring = gpu.as_str() == restoring;
        }
        published.set_layout(layout.clone(), None);
        let error = node.start("GPU-a::0").await.expect_err("refused");
        assert!(error.contains(expected), "{error}");
        let found = published.get().inventory.refused.len();
        assert_eq!(found, refused, "{restoring}");
    }
}

/// MIG mode is off since, or the instance of a layout is gone.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_mode_refuses_at_a_restart_reaches_the_scheduler() {
    let mut made = grant(RESOURCE, "GPU-a", 1, 30);
    made["mig"] = json!({"profile": "1g.5gb", "start": 0});
    let fixed = grant(RESOURCE, "MIG-b", 1, 30);
    let share = |grant| serde_json::from_value(grant).expect("a grant");
    let off = "MIG mode is disabled on GPU-a";
    check_refusal(share(made), "GPU-a", "GPU-b", off).await;
    let gone = "MIG-b of the pod's allocation is no longer on this node";
    check_refusal(share(fixed), "GPU-b", "GPU-a", gone).await;
}

/// Without a limiter, and in modes that need none.
#[tokio::test(flavor = "multi_thread")]
async fn starts_no_container_without_driver_in_any_mode() {
    for (gpu, resource, memory, cores) in
        [("GPU-a", RESOURCE, 10_000, 100), ("GPU-b", SHARED, 0, 0)]
    {
        let (mut node, mut plugins) = two_modes().await;
        std::fs::remove_file(&node.allocations.paths.driver_spec).expect("removed");
        let grants = json!({"main": [grant(resource, gpu, memory, cores)]});
        let main = [json!({"name": "main"})];
        let pod = bound("u1", &grants, &json!({}), &main, &[]);
        node.pods.apply(pod);
        let plugin = plugins.get_mut(resource).expect("registered");
        let id = format!("{gpu}::0");
        let ids = [id.as_str()];
        let (kubelet, main) = (&mut node.kubelet, "main");
        kubelet
            .admit_under(resource, plugin, "u1", main, &ids)
            .await;
        let refused = prestart(plugin, &ids).await.expect_err("refused");
        let words = "main would start without libcuda.so.1: the CDI spec of the driver";
        assert!(refused.contains(words), "{refused}");
        let directories = std::fs::read_dir(&node.allocations.paths.container_directories);
        assert_eq!(directories.map_or(0, Iterator::count), 0, "{gpu}");
    }
}
