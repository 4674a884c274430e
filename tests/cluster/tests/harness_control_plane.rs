//! The cluster without a node: its start, side by side with another, identities, fake nodes.

mod leftovers;

use aliquot_cluster::wait::{PATIENCE, eventually};
use aliquot_cluster::{Cluster, Replica};
use anyhow::Result;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client};
use serde_json::json;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;

fn pod(name: &str) -> serde_json::Value {
    json!({
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "main", "image": "localhost/busybox:1"}]},
    })
}

#[tokio::test]
async fn two_clusters_run_side_by_side_and_leave_nothing_behind() -> Result<()> {
    let (a, b) = tokio::try_join!(
        Box::pin(Cluster::control_plane().start()),
        Box::pin(Cluster::control_plane().extender().start())
    )?;
    assert_ne!(a.api_url(), b.api_url());
    for cluster in [&a, &b] {
        cluster.namespace("space").await?;
        let accounts = cluster
            .kubectl(&["get", "serviceaccount", "-A", "-o", "name"])
            .await?;
        assert!(accounts.success()?.contains("serviceaccount/default"));
    }
    let states = [a.state_dir().to_owned(), b.state_dir().to_owned()];
    a.stop().await?;
    let alive = b.kubectl(&["get", "--raw", "/readyz"]).await?.success()?;
    assert_eq!(alive, "ok");
    b.stop().await?;
    for state in states {
        assert_eq!(leftovers::of(&state), Vec::<String>::new());
        assert!(!state.exists(), "{} is still there", state.display());
    }
    Ok(())
}

#[tokio::test]
async fn schedules_a_pod_to_a_fake_node_and_removes_it_on_deletion() -> Result<()> {
    let cluster = Box::pin(Cluster::control_plane().start()).await?;
    let capacity = [("nvidia.com/gpu", "20"), ("cpu", "2")];
    let node = cluster
        .fake_node("fake-1", &[("zone", "a")], &capacity)
        .await?;
    let allocatable = node.status.and_then(|s| s.allocatable).unwrap();
    assert_eq!(allocatable["cpu"].0, "2");
    assert_eq!(allocatable["pods"].0, "250");
    cluster.create_pod(pod("p")).await?;
    let placed = cluster
        .wait_pod("default", "p", "the pod to be placed", |pod| {
            Ok(pod
                .spec
                .as_ref()
                .is_some_and(|spec| spec.node_name.is_some()))
        })
        .await?;
    assert_eq!(placed.spec.unwrap().node_name.unwrap(), "fake-1");
    // kube-scheduler posts it after its Binding.
    eventually(PATIENCE, "the event Scheduled", || async {
        let events = cluster.events("default", "Pod", "p").await?;
        let mut reasons = events.iter().filter_map(|event| event.reason.as_deref());
        Ok(reasons.any(|reason| reason == "Scheduled").then_some(()))
    })
    .await?;
    cluster.set_phase("default", "p", "Running").await?;
    cluster.wait_phase("default", "p", "Running").await?;
    cluster.delete_pod("default", "p").await?;

    cluster.stop_apiserver().await?;
    cluster.start_apiserver().await?;
    cluster.restart_scheduler().await?;
    cluster.create_pod(pod("q")).await?;
    cluster
        .wait_pod(
            "default",
            "q",
            "the pod to be placed after restarts",
            |pod| {
                Ok(pod
                    .spec
                    .as_ref()
                    .is_some_and(|spec| spec.node_name.is_some()))
            },
        )
        .await?;
    cluster.stop().await
}

#[tokio::test]
async fn token_bound_to_a_node_names_account_and_node() -> Result<()> {
    let cluster = Box::pin(Cluster::control_plane().start()).await?;
    cluster.namespace("aliquot-system").await?;
    cluster.fake_node("fake-1", &[], &[]).await?;
    let path = cluster
        .kubeconfig_for("aliquot-system", "default", Some("fake-1"))
        .await?;
    let kubeconfig = Kubeconfig::read_from(path)?;
    let options = KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await?;
    let reviews: Api<SelfSubjectReview> = Api::all(Client::try_from(config)?);
    let review = reviews
        .create(&PostParams::default(), &SelfSubjectReview::default())
        .await?;
    let user = review.status.and_then(|status| status.user_info).unwrap();
    assert_eq!(
        user.username.unwrap(),
        "system:serviceaccount:aliquot-system:default"
    );
    let extra = user.extra.unwrap();
    assert_eq!(extra["authentication.kubernetes.io/node-name"], ["fake-1"]);
    assert!(
        cluster
            .kubeconfig_for("aliquot-system", "nobody", None)
            .await
            .is_err()
    );
    cluster.stop().await
}

#[tokio::test]
async fn kube_scheduler_sends_only_pods_with_our_resources() -> Result<()> {
    let cluster = Box::pin(Cluster::control_plane().extender().start()).await?;
    let extender = TcpListener::bind(cluster.extender_address()).await?;
    cluster
        .fake_node("fake-1", &[], &[("nvidia.com/gpu", "20")])
        .await?;
    cluster.create_pod(pod("plain")).await?;
    let placed = |pod: &Pod| {
        Ok(pod
            .spec
            .as_ref()
            .is_some_and(|spec| spec.node_name.is_some()))
    };
    cluster
        .wait_pod("default", "plain", "the plain pod to be placed", placed)
        .await?;

    let mut ours = pod("ours");
    let limits = json!({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30});
    ours["spec"]["containers"][0]["resources"] = json!({"limits": limits});
    cluster.create_pod(ours).await?;
    let (mut call, _) = tokio::time::timeout(PATIENCE, extender.accept()).await??;
    let mut start = [0; 12];
    call.read_exact(&mut start).await?;
    assert_eq!(std::str::from_utf8(&start)?, "POST /filter");
    cluster.stop().await
}

#[tokio::test]
async fn one_of_two_replicas_holds_the_lease_until_it_is_killed() -> Result<()> {
    let cluster = Box::pin(Cluster::control_plane().without_scheduler().start()).await?;
    let kubeconfig = cluster.kubeconfig();
    let replica = |name| Replica {
        name,
        extender: cluster.extender_address(),
        lease: ("default", "replicas"),
        times: (3, 2, 1),
        kubeconfig: &kubeconfig,
        args: &[],
    };
    let leases: Api<Lease> = Api::namespaced(cluster.admin()?, "default");
    let holder = || async {
        let spec = leases.get("replicas").await?.spec.unwrap_or_default();
        let holder = spec.holder_identity.unwrap_or_default();
        Ok(holder.split_once('_').map(|(name, _)| name.to_owned()))
    };
    let first = cluster.start_replica(replica("replica-a"))?;
    let leader = eventually(PATIENCE, "a holder of the lease", holder).await?;
    assert_eq!(leader, "replica-a");
    let _second = cluster.start_replica(replica("replica-b"))?;
    first.kill().await?;
    eventually(PATIENCE, "the other to hold it", || async {
        Ok(holder().await?.filter(|name| name == "replica-b"))
    })
    .await?;
    cluster.stop().await
}

#[tokio::test]
async fn also_sends_pods_without_a_gpu_where_enabled() -> Result<()> {
    let cluster = Cluster::control_plane().extender();
    let cluster = cluster.chart_value("scheduler.cpuOnly", json!(true));
    let cluster = Box::pin(cluster.start()).await?;
    let extender = TcpListener::bind(cluster.extender_address()).await?;
    // kube-scheduler ranks nothing where only one node fits: it must know both.
    for node in ["fake-1", "fake-2"] {
        cluster.fake_node(node, &[("is", node)], &[]).await?;
        let mut first = pod(node);
        first["spec"]["nodeSelector"] = json!({"is": node});
        cluster.create_pod(first).await?;
        cluster
            .wait_pod("default", node, "its node to be known", |pod| {
                let spec = pod.spec.as_ref();
                Ok(spec.is_some_and(|spec| spec.node_name.is_some()))
            })
            .await?;
    }
    let mut plain = pod("plain");
    plain["spec"]["schedulerName"] = json!("aliquot-scheduler");
    cluster.create_pod(plain).await?;
    let (mut call, _) = tokio::time::timeout(PATIENCE, extender.accept()).await??;
    let mut start = [0; 25];
    call.read_exact(&mut start).await?;
    assert_eq!(std::str::from_utf8(&start)?, "POST /cpu-only/prioritize");
    cluster.stop().await
}
