//! Starts of containers without CDI, over the whole protocol.

use std::path::Path;

use crate::node::{Node, node_with};

fn specs(node: &Node) -> usize {
    let specs = std::fs::read_dir(&node.allocations.paths.cdi);
    specs.expect("listed").count()
}

#[tokio::test(flavor = "multi_thread")]
async fn without_cdi_mounts_directory_and_writes_no_spec() {
    let mut node = node_with(&["--device-list=envvar"]).connected().await;
    node.bind("u1", "GPU-b", 3000);
    let directory = node.admit("u1", "GPU-b::0").await;
    let directory = Path::new(&directory);
    assert!(!directory.exists(), "Allocate writes nothing");
    node.start("GPU-b::0").await.expect("accepted");
    for file in ["limits", "counters/slots"] {
        assert!(directory.join(file).exists(), "{file}");
    }
    assert_eq!(specs(&node), 0);
    // A restart of the container is served from the accepted allocation.
    node.pods.delete(&"u1".into());
    node.start("GPU-b::0").await.expect("served");
}

#[tokio::test(flavor = "multi_thread")]
async fn serves_container_as_allocate_answered() {
    for (before, after, by_cdi) in [("envvar", "cdi", 0), ("cdi", "envvar", 1)] {
        let list = |strategy: &str| format!("--device-list={strategy}");
        let mut node = node_with(&[&list(before)]).connected().await;
        node.admit("u1", "GPU-b::0").await;
        // The next agent is configured for the other strategy.
        let mut next = node_with(&[&list(after)]).connected().await;
        let checkpoint = |node: &Node| node.allocations.paths.checkpoint.clone();
        std::fs::copy(checkpoint(&node), checkpoint(&next)).expect("copied");
        next.bind("u1", "GPU-b", 3000);
        next.start("GPU-b::0").await.expect("accepted");
        assert_eq!(specs(&next), by_cdi, "{before}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_cdi_refuses_pod_with_other_gpus() {
    let mut node = node_with(&["--device-list=envvar"]).connected().await;
    node.bind("u1", "GPU-b", 3000);
    node.admit("u1", "GPU-a::0").await;
    let refused = node.start("GPU-a::0").await.expect_err("refused");
    assert!(refused.contains("Allocate named GPU-a"), "{refused}");
    assert_eq!(node.files(), 0);
    // The scheduler evicts the pods that the agent lists.
    let published = node.allocations.published.get();
    assert_eq!(published.inventory.refused[0].name, "u1");
}
