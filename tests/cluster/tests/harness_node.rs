//! The cluster with a node: a real kubelet runs pods, and all of it can be ended.

mod leftovers;

use std::path::Path;

use aliquot_cluster::Cluster;
use aliquot_cluster::wait::{PATIENCE, eventually};
use anyhow::{Result, ensure};
use serde_json::{Value, json};

fn pod(name: &str, image: &str, command: &[&str]) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": image, "command": command}],
        },
    })
}

/// Waits until its container has printed all that it ever prints.
async fn has_started(cluster: &Cluster, pod: &str) -> Result<()> {
    eventually(PATIENCE, "the container's log", || async {
        let log = cluster.logs("default", pod, "main").await?;
        ensure!(log == "started\n", "{log:?}");
        Ok(Some(()))
    })
    .await
}

#[tokio::test]
async fn kubelet_runs_pods_through_its_restart_and_leaves_nothing() -> Result<()> {
    let cluster = Box::pin(Cluster::with_node().start()).await?;
    let script = "echo started; exec sleep 100000";
    cluster
        .create_pod(pod("p", "localhost/busybox:1", &["sh", "-c", script]))
        .await?;
    let running = cluster.wait_running("default", "p").await?;
    assert_eq!(running.spec.unwrap().node_name.unwrap(), "node-1");
    has_started(&cluster, "p").await?;
    let echo = cluster
        .exec(
            "default",
            "p",
            "main",
            &["sh", "-c", "echo $0; exit 3", "x"],
        )
        .await?;
    assert_eq!((echo.code, echo.stdout.as_str()), (Some(3), "x\n"));
    assert!(
        cluster
            .kubelet_dir()
            .join("device-plugins/kubelet.sock")
            .exists()
    );
    assert!(
        cluster
            .kubelet_dir()
            .join("pod-resources/kubelet.sock")
            .exists()
    );

    let image = "localhost/own:1";
    cluster
        .import_image(image, "/own arg", &[(Path::new("/bin/busybox"), "/own")])
        .await?;
    assert!(
        cluster
            .ctr(&["images", "ls", "-q"])
            .await?
            .success()?
            .contains(image)
    );

    cluster.restart_kubelet().await?;
    let containers = cluster.wait_running("default", "p").await?.status.unwrap();
    assert_eq!(containers.container_statuses.unwrap()[0].restart_count, 0);
    cluster
        .create_pod(pod("after", "localhost/busybox:1", &["true"]))
        .await?;
    cluster
        .wait_pod("default", "after", "its container to end", |pod| {
            let statuses = pod
                .status
                .as_ref()
                .and_then(|s| s.container_statuses.as_ref());
            Ok(statuses.is_some_and(|all| all.iter().any(|c| c.restart_count > 0)))
        })
        .await?;
    cluster.delete_pod("default", "after").await?;

    let interface = leftovers::interface_of(&cluster, "p").await?;
    let state = cluster.state_dir().to_owned();
    assert!(
        !leftovers::of(&state).is_empty(),
        "found no trace of a running node"
    );
    cluster.stop().await?;
    assert_eq!(leftovers::of(&state), Vec::<String>::new());
    assert!(
        !leftovers::has_interface(interface),
        "{interface} is still there"
    );
    assert!(!state.exists(), "{} is still there", state.display());
    Ok(())
}

#[tokio::test]
async fn runs_a_static_pod_on_a_node_with_another_name() -> Result<()> {
    let cluster = Box::pin(Cluster::with_node().node_name("gpu-7").start()).await?;
    let mut fixed = pod("fixed", "localhost/busybox:1", &["sleep", "100000"]);
    fixed["apiVersion"] = "v1".into();
    fixed["kind"] = "Pod".into();
    std::fs::write(
        cluster.manifests_dir().join("fixed.json"),
        fixed.to_string(),
    )?;
    let pods = cluster.admin()?;
    let pods: kube::Api<k8s_openapi::api::core::v1::Pod> = kube::Api::default_namespaced(pods);
    eventually(PATIENCE, "the mirror pod", || async {
        Ok(pods.get_opt("fixed-gpu-7").await?)
    })
    .await?;
    cluster.wait_running("default", "fixed-gpu-7").await?;
    let name = cluster
        .exec("default", "fixed-gpu-7", "main", &["hostname"])
        .await?;
    assert_eq!(name.success()?, "fixed-gpu-7\n");
    cluster.stop().await
}

#[tokio::test]
async fn runs_two_clusters_with_nodes_side_by_side() -> Result<()> {
    const SETTING: &str = "/proc/sys/kernel/keys/root_maxkeys";
    let before = std::fs::read_to_string(SETTING)?;
    let (one, other) = tokio::try_join!(
        Box::pin(Cluster::with_node().start()),
        Box::pin(Cluster::with_node().start()),
    )?;
    for cluster in [&one, &other] {
        let script = ["sh", "-c", "echo started; exec sleep 100000"];
        cluster
            .create_pod(pod("p", "localhost/busybox:1", &script))
            .await?;
        cluster.wait_running("default", "p").await?;
    }
    // The first one's end does not affect the other.
    one.stop().await?;
    other.restart_kubelet().await?;
    has_started(&other, "p").await?;
    let output = other.exec("default", "p", "main", &["echo", "x"]).await?;
    assert_eq!(output.success()?, "x\n");
    other.stop().await?;
    assert_eq!(std::fs::read_to_string(SETTING)?, before);
    Ok(())
}

#[tokio::test]
async fn three_kubelets_run_pods_side_by_side_and_leave_nothing() -> Result<()> {
    let cluster = Box::pin(Cluster::with_node().start()).await?;
    let further = tokio::try_join!(
        Box::pin(cluster.further_node("node-2", 1)),
        Box::pin(cluster.further_node("node-3", 2)),
    )?;
    let mut interfaces = Vec::new();
    for node in ["node-1", "node-2", "node-3"] {
        let script = ["sh", "-c", "echo started; exec sleep 100000"];
        let mut pod = pod(node, "localhost/busybox:1", &script);
        pod["spec"]["nodeName"] = node.into();
        cluster.create_pod(pod).await?;
        cluster.wait_running("default", node).await?;
        has_started(&cluster, node).await?;
        interfaces.push(leftovers::interface_of(&cluster, node).await?);
    }
    let state = cluster.state_dir().to_owned();
    drop(further);
    cluster.stop().await?;
    assert_eq!(leftovers::of(&state), Vec::<String>::new());
    interfaces.retain(|index| leftovers::has_interface(*index));
    assert_eq!(interfaces, Vec::<u32>::new());
    assert!(!state.exists(), "{} is still there", state.display());
    Ok(())
}
