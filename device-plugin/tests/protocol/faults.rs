//! What goes wrong around the agent: a runtime without CDI, files that stay, files that are damaged.
//!
//! Fed by: nothing. Must not: need an API server or a GPU.

use std::time::{Duration, Instant};

use aliquot_core::inventory::Refused;
use aliquot_device_plugin::accepted::Store;
use aliquot_device_plugin::by_env::DeviceList;
use aliquot_device_plugin::housekeeping;
use aliquot_device_plugin::metrics::{Metrics, Outcome};
use aliquot_device_plugin::proto::v1beta1 as api;
use aliquot_device_plugin::runtime::choice::Looked;

use crate::kubelet::{DEADLINE, Kubelet, prestart};
use crate::node::{Node, node, pod, unlooked};

/// Registrations that fail, one after the other, before the pause between them is 3.2 s long.
const TRIES: u64 = 5;

type Plugin = api::device_plugin_client::DevicePluginClient<tonic::transport::Channel>;

#[tokio::test(flavor = "multi_thread")]
async fn mig_14_no_container_starts_under_a_runtime_that_would_leave_its_gpu_out() {
    let mut node = node();
    let mut plugin = node.kubelet.plugin().await;
    node.pods.apply(pod("u1", &[("main", false, "GPU-a", 1)]));
    node.kubelet
        .admit(&mut plugin, "u1", "main", &["GPU-a::0"])
        .await;
    let found = |why: Option<&str>, handed| {
        node.prestart.published.runtime(Looked {
            handed: Some(handed),
            without_cdi: why.map(str::to_owned),
            ..Looked::default()
        });
    };
    let old = "containerd 1.6.20 knows no CDI";
    found(Some(old), DeviceList::Cdi);
    let refused = prestart(&mut plugin, &["GPU-a::0"])
        .await
        .expect_err("refused");
    assert!(refused.contains("1.6.20 knows no CDI"), "{refused}");
    assert_eq!(node.files(), 0);
    // It was told of CDI, whatever others are told now.
    found(Some(old), DeviceList::Envvar);
    let refused = prestart(&mut plugin, &["GPU-a::0"])
        .await
        .expect_err("refused");
    assert!(refused.contains("1.6.20 knows no CDI"), "{refused}");
    found(None, DeviceList::Cdi);
    prestart(&mut plugin, &["GPU-a::0"])
        .await
        .expect("accepted");
}

#[tokio::test(flavor = "multi_thread")]
async fn before_anybody_looked_at_the_runtime_containers_started_with_neither_gpu_nor_limits() {
    let mut node = unlooked(&[]);
    let mut plugin = node.kubelet.plugin().await;
    node.pods.apply(pod("u1", &[("main", false, "GPU-a", 1)]));
    let seat = ["GPU-a::0"];
    node.kubelet.admit(&mut plugin, "u1", "main", &seat).await;
    let early = tokio::time::timeout(Duration::from_secs(1), prestart(&mut plugin, &seat)).await;
    assert!(early.is_err(), "it did not wait: {early:?}");
    assert_eq!(node.files(), 0);
    node.prestart.published.runtime(Looked::default());
    prestart(&mut plugin, &seat).await.expect("accepted");
    // What was accepted starts again, though the agent that comes back knows nothing yet.
    let mut later = unlooked(&[]);
    let accepted = node.prestart.paths.accepted.clone();
    *later.prestart.store.lock() = Store::open(accepted).expect("opened");
    let mut plugin = later.kubelet.plugin().await;
    later.kubelet.admit(&mut plugin, "u1", "main", &seat).await;
    prestart(&mut plugin, &seat).await.expect("served");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_seat_that_could_not_be_removed_ended_each_round_of_housekeeping() {
    let node = node();
    let seats = &node.prestart.paths.seats;
    // The name of its spec would be longer than a file's name may be.
    let stuck = seats.join("A".repeat(250));
    for seat in [&stuck, &seats.join("GPU-z-0-1")] {
        std::fs::create_dir_all(seat).expect("made");
    }
    let proc = node.room.path().join("proc");
    std::fs::create_dir(&proc).expect("made");
    node.prestart.published.refused(Refused {
        pod: "gone".into(),
        namespace: "default".to_owned(),
        name: "gone".to_owned(),
        reason: "no room".to_owned(),
    });
    housekeeping::round(&node.prestart, &proc, &Metrics::default()).expect("a round");
    assert!(stuck.exists() && !seats.join("GPU-z-0-1").exists());
    let inventory = &node.prestart.published.get().inventory;
    assert_eq!(inventory.refused, [], "the round went on to its end");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_whose_stored_share_was_damaged_counts_by_its_annotation_or_with_everything() {
    let mut node = node();
    let mut plugin = node.kubelet.plugin().await;
    let accepted = node.prestart.paths.accepted.join("u1.json");
    std::fs::write(&accepted, r#"{"v":1,"pod":"u1","#).expect("half of a share");
    let store = Store::open(node.prestart.paths.accepted.clone()).expect("opened");
    *node.prestart.store.lock() = store;
    let start = async |node: &mut Node, plugin: &mut Plugin, uid: &str, seat: &str| {
        node.kubelet.admit(plugin, uid, "main", &[seat]).await;
        prestart(plugin, &[seat]).await
    };
    // Its annotation says what it has of one card.
    node.pods
        .apply(pod("u1", &[("main", false, "GPU-a", 8000)]));
    node.pods
        .apply(pod("u2", &[("main", false, "GPU-a", 3000)]));
    let refused = start(&mut node, &mut plugin, "u2", "GPU-a::1").await;
    let refused = refused.expect_err("it does not fit");
    assert!(refused.contains("CardInsufficientMemory"), "{refused}");
    node.pods
        .apply(pod("u3", &[("main", false, "GPU-b", 3000)]));
    start(&mut node, &mut plugin, "u3", "GPU-b::0")
        .await
        .expect("another card");
    // Nothing says it.
    let mut silent = pod("u1", &[("main", false, "GPU-a", 8000)]);
    silent.allocation = None;
    node.pods.apply(silent);
    node.pods.apply(pod("u4", &[("main", false, "GPU-b", 1)]));
    let refused = start(&mut node, &mut plugin, "u4", "GPU-b::1").await;
    let refused = refused.expect_err("nobody knows what is free");
    assert!(refused.contains("uid u1"), "{refused}");
    // Its next start is judged anew, and it counts like all others.
    node.pods
        .apply(pod("u1", &[("main", false, "GPU-a", 8000)]));
    start(&mut node, &mut plugin, "u1", "GPU-a::0")
        .await
        .expect("judged anew");
    prestart(&mut plugin, &["GPU-b::1"])
        .await
        .expect("all is known");
    assert!(node.prestart.store.lock().damaged().is_empty());
}

/// The kubelet that was away then failed each pod that it took up before we were registered.
#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_that_came_back_was_left_alone_for_the_rest_of_a_long_pause() {
    let mut node = node();
    node.kubelet.registration().await;
    let plugins = node.prestart.paths.plugins.clone();
    // As `kill -9`: its socket stays. Ours is gone, so the agent tries to register.
    drop(node.kubelet);
    std::fs::remove_file(plugins.join("aliquot-gpu.sock")).expect("removed");
    let failed = Outcome { outcome: "failed" };
    let growing = async {
        let mut looks = tokio::time::interval(Duration::from_millis(5));
        while node.metrics.register.get_or_create(&failed).get() < TRIES {
            looks.tick().await;
        }
    };
    tokio::time::timeout(DEADLINE, growing)
        .await
        .expect("tries");
    let back = Instant::now();
    Kubelet::start(&plugins).registration().await;
    let took = back.elapsed();
    // The pause was five seconds.
    assert!(took < Duration::from_secs(4), "{took:?}");
}
