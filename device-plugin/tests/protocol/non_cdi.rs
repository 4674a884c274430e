//! Starts of containers without CDI, over the whole protocol.

use std::path::Path;

use aliquot_device_plugin::non_cdi::DeviceListStrategy;
use aliquot_device_plugin::runtime::device_list::RuntimeStatus;

use crate::kubelet::prestart;
use crate::node::{node_with, pod};

#[tokio::test(flavor = "multi_thread")]
async fn without_cdi_mounts_directory_and_writes_no_spec() {
    let mut node = node_with(&["--device-list=envvar"]);
    let mut plugin = node.kubelet.plugin().await;
    node.pods
        .apply(pod("u1", &[("main", false, "GPU-b", 3000)]));
    let ids = ["GPU-b::0"];
    let directory = node.kubelet.admit(&mut plugin, "u1", "main", &ids).await;
    let directory = Path::new(&directory);
    assert!(!directory.exists(), "Allocate writes nothing");
    prestart(&mut plugin, &ids).await.expect("accepted");
    for file in ["limits", "counters/slots"] {
        assert!(directory.join(file).exists(), "{file}");
    }
    let paths = &node.prestart.paths;
    let specs = std::fs::read_dir(&paths.cdi).expect("listed").count();
    assert_eq!(specs, 0);
    // A restart of the container is served from the accepted allocation.
    node.pods.delete(&"u1".into());
    prestart(&mut plugin, &ids).await.expect("served");
}

fn runtime_status(device_list: DeviceListStrategy) -> RuntimeStatus {
    RuntimeStatus {
        device_list: Some(device_list),
        ..RuntimeStatus::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn waits_for_device_list_choice_and_keeps_it() {
    let mut node = node_with(&["--device-list=auto"]);
    let mut plugin = node.kubelet.plugin().await;
    let given = [("main", false, "GPU-b", 3000)];
    node.pods.apply(pod("u1", &given));
    let published = node.prestart.published.clone();
    let choice = tokio::spawn(async move {
        // Whether the kubelet's call or the choice comes first, both must end alike.
        tokio::task::yield_now().await;
        published.set_runtime(runtime_status(DeviceListStrategy::Envvar));
    });
    let ids = ["GPU-b::0"];
    node.kubelet.admit(&mut plugin, "u1", "main", &ids).await;
    choice.await.expect("chosen");
    prestart(&mut plugin, &ids).await.expect("accepted");
    let specs = || {
        let paths = &node.prestart.paths;
        std::fs::read_dir(&paths.cdi).expect("listed").count()
    };
    assert_eq!(specs(), 0, "by its environment");
    // An agent that finds CDI later serves it as Allocate answered.
    node.prestart
        .published
        .set_runtime(runtime_status(DeviceListStrategy::Cdi));
    prestart(&mut plugin, &ids).await.expect("served");
    assert_eq!(specs(), 0, "as Allocate answered");
    node.pods.apply(pod("u2", &given));
    let ids = ["GPU-b::1"];
    node.kubelet.admit(&mut plugin, "u2", "main", &ids).await;
    prestart(&mut plugin, &ids).await.expect("accepted");
    let specs = std::fs::read_dir(&node.prestart.paths.cdi).expect("listed");
    assert_eq!(specs.count(), 1, "by CDI");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_cdi_refuses_pod_with_other_gpus() {
    let mut node = node_with(&["--device-list=volume-mounts"]);
    let mut plugin = node.kubelet.plugin().await;
    node.pods
        .apply(pod("u1", &[("main", false, "GPU-b", 3000)]));
    let ids = ["GPU-a::0"];
    node.kubelet.admit(&mut plugin, "u1", "main", &ids).await;
    let refused = prestart(&mut plugin, &ids).await.expect_err("refused");
    for part in [
        "Allocate named GPU-a",
        "allocation has GPU-b",
        "create it again",
    ] {
        assert!(refused.contains(part), "{refused}");
    }
    assert_eq!(node.files(), 0);
    // The scheduler evicts the pods that the agent lists.
    let published = node.prestart.published.get();
    assert_eq!(published.inventory.refused[0].name, "u1");
}
