//! Without CDI, over the whole protocol.
//!
//! Fed by: [`crate::node`]. Must not: know how an answer is made.

use std::path::Path;

use aliquot_device_plugin::by_env::DeviceList;
use aliquot_device_plugin::runtime::choice::Looked;

use crate::kubelet::prestart;
use crate::node::{node_with, pod};

#[tokio::test(flavor = "multi_thread")]
async fn without_cdi_a_container_gets_its_seat_and_no_spec_is_written() {
    let mut node = node_with(&["--device-list=envvar"]);
    let mut plugin = node.kubelet.plugin().await;
    node.pods
        .apply(pod("u1", &[("main", false, "GPU-b", 3000)]));
    let ids = ["GPU-b::0"];
    let seat = node.kubelet.admit(&mut plugin, "u1", "main", &ids).await;
    let seat = Path::new(&seat);
    assert!(!seat.exists(), "Allocate writes nothing");
    prestart(&mut plugin, &ids).await.expect("accepted");
    for file in ["limits", "counters/slots"] {
        assert!(seat.join(file).exists(), "{file}");
    }
    let paths = &node.prestart.paths;
    let specs = std::fs::read_dir(&paths.cdi).expect("listed").count();
    assert_eq!(specs, 0);
    // A restart of the container is served from what was accepted.
    node.pods.delete(&"u1".into());
    prestart(&mut plugin, &ids).await.expect("served");
}

fn looked(handed: DeviceList) -> Looked {
    Looked {
        handed: Some(handed),
        ..Looked::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_came_before_the_choice_waits_for_it_and_keeps_what_it_was_told() {
    let mut node = node_with(&["--device-list=auto"]);
    let mut plugin = node.kubelet.plugin().await;
    let given = [("main", false, "GPU-b", 3000)];
    node.pods.apply(pod("u1", &given));
    let published = node.prestart.published.clone();
    let choice = tokio::spawn(async move {
        // The kubelet's call is there first, or it finds the choice: both must end alike.
        tokio::task::yield_now().await;
        published.runtime(looked(DeviceList::Envvar));
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
    // An agent that finds CDI later serves it as it was told.
    node.prestart.published.runtime(looked(DeviceList::Cdi));
    prestart(&mut plugin, &ids).await.expect("served");
    assert_eq!(specs(), 0, "as it was told");
    node.pods.apply(pod("u2", &given));
    let ids = ["GPU-b::1"];
    node.kubelet.admit(&mut plugin, "u2", "main", &ids).await;
    prestart(&mut plugin, &ids).await.expect("accepted");
    let specs = std::fs::read_dir(&node.prestart.paths.cdi).expect("listed");
    assert_eq!(specs.count(), 1, "by CDI");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_cdi_a_pod_on_other_gpus_than_the_kubelet_took_is_refused_and_told() {
    let mut node = node_with(&["--device-list=volume-mounts"]);
    let mut plugin = node.kubelet.plugin().await;
    node.pods
        .apply(pod("u1", &[("main", false, "GPU-b", 3000)]));
    let ids = ["GPU-a::0"];
    node.kubelet.admit(&mut plugin, "u1", "main", &ids).await;
    let refused = prestart(&mut plugin, &ids).await.expect_err("refused");
    for part in ["told GPU-a", "given GPU-b", "create it again"] {
        assert!(refused.contains(part), "{refused}");
    }
    assert_eq!(node.files(), 0);
    // The scheduler evicts whom the agent lists.
    let published = node.prestart.published.get();
    assert_eq!(published.inventory.refused[0].name, "u1");
}
