//! Starts of containers without CDI, over the whole protocol.

use std::path::Path;

use crate::kubelet::prestart;
use crate::node::{Node, node_with, pod};

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
    let paths = &node.allocations.paths;
    let specs = std::fs::read_dir(&paths.cdi).expect("listed").count();
    assert_eq!(specs, 0);
    // A restart of the container is served from the accepted allocation.
    node.pods.delete(&"u1".into());
    prestart(&mut plugin, &ids).await.expect("served");
}

#[tokio::test(flavor = "multi_thread")]
async fn serves_container_as_allocate_answered() {
    let given = [("main", false, "GPU-b", 3000)];
    let ids = ["GPU-b::0"];
    for (before, after, by_cdi) in [("envvar", "cdi", 0), ("cdi", "envvar", 1)] {
        let list = |strategy: &str| format!("--device-list={strategy}");
        let mut node = node_with(&[&list(before)]);
        let mut plugin = node.kubelet.plugin().await;
        node.kubelet.admit(&mut plugin, "u1", "main", &ids).await;
        // The next agent is configured for the other strategy.
        let mut next = node_with(&[&list(after)]);
        let mut plugin = next.kubelet.plugin().await;
        let checkpoint = |node: &Node| node.allocations.paths.checkpoint.clone();
        std::fs::copy(checkpoint(&node), checkpoint(&next)).expect("copied");
        next.pods.apply(pod("u1", &given));
        prestart(&mut plugin, &ids).await.expect("accepted");
        let specs = std::fs::read_dir(&next.allocations.paths.cdi).expect("listed");
        assert_eq!(specs.count(), by_cdi, "{before}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_cdi_refuses_pod_with_other_gpus() {
    let mut node = node_with(&["--device-list=envvar"]);
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
    let published = node.allocations.published.get();
    assert_eq!(published.inventory.refused[0].name, "u1");
}
