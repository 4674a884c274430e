//! The chart on one running cluster: first with a node, on which its pods run, then without, where it
//! matters what the API server says.

use std::process::ExitCode;
use std::sync::Arc;

use aliquot_chart::{HelmOutput, NAMESPACE, helm};
use aliquot_cluster::Cluster;
use aliquot_e2e::scenario::{self, Fixture, scenario, world};
use anyhow::{Context as _, Result};
use serde_json::json;

mod fenced;
mod life;
mod lifecycle;
mod parts;

fn main() -> ExitCode {
    // A world for each, because an uninstalled release leaves its namespace.
    let survives = scenario(
        "hami_12_pod_survives_chart_upgrade_and_uninstall",
        life::pod_survives,
    );
    let from_older = scenario(
        "running_pods_survive_an_upgrade_from_an_older_release",
        life::older::upgraded,
    );
    let from_registry = scenario(
        "release_from_a_registry_runs_a_share_within_90_s",
        life::registry::runs_share,
    );
    let as_written = scenario("quick_start_runs_as_written", life::quick_start::runs);
    let enforced = scenario(
        "quick_start_runs_where_network_policies_are_enforced",
        life::enforced::runs,
    );
    let external = scenario(
        "a_kube_scheduler_of_ones_own_places_a_share",
        life::external::places_a_share,
    );
    let certificates = scenario(
        "webhook_and_extender_serve_what_cert_manager_renews",
        life::cert_manager::renews,
    );
    let upgrades = scenario(
        "helm_upgrade_keeps_values_and_certificates",
        lifecycle::upgrades,
    );
    let by_helm_4 = scenario(
        "helm_4_applies_on_the_server_and_stops_at_fields_of_others",
        lifecycle::applies_on_the_server,
    );
    let of_parts = scenario(
        "api_server_takes_the_values_of_every_part",
        parts::are_accepted,
    );
    // Last, because its nodes, pods and namespaces stay until the cluster ends.
    let requests = scenario(
        "api_server_refuses_forbidden_verbs_and_annotations",
        fenced::refused,
    );
    let worlds = vec![
        world(with_node, vec![survives]),
        world(with_node, vec![as_written.long()]),
        world(with_node, vec![enforced.long()]),
        world(with_node, vec![external.long()]),
        world(with_node, vec![certificates.long()]),
        world(with_node, vec![from_older.long()]),
        // The kubelet then remembers the image as that registry's, and refuses it under other names.
        world(with_node, vec![from_registry.long()]),
        world(without_node, vec![upgrades]),
        world(without_node, vec![by_helm_4.long()]),
        world(without_node, vec![of_parts.long()]),
        world(without_node, vec![requests]),
    ];
    scenario::main(ChartCluster::start, worlds)
}

/// A cluster to install the chart on.
struct ChartCluster {
    cluster: Arc<Cluster>,
}

impl ChartCluster {
    async fn start() -> Result<Self> {
        let cluster = Cluster::with_node()
            .serve_pods()
            // Aliquot's scheduler runs in its pods; the cluster's own serves other names.
            .chart_value("schedulerName", json!("unused"))
            // Without kube-proxy, the API server calls webhooks at their pods.
            .apiserver_arg("--enable-aggregator-routing=true")
            // No kubelet reports that the nodes are well that `fenced` makes up.
            .controller_manager_arg("--node-monitor-grace-period=1h");
        let cluster = Arc::new(Box::pin(cluster.start()).await?);
        Ok(Self { cluster })
    }
}

impl Fixture for ChartCluster {
    /// Removes the namespace, and what a failed scenario has left: its release and its pods.
    async fn clear(&self) -> Result<()> {
        let uninstall = ["uninstall", "aliquot", "--no-hooks", "--ignore-not-found"];
        helm_on(&self.cluster, &uninstall)?.success()?;
        let pods = ["pods", "-A", "--all", "--force", "--grace-period=0"];
        let namespace = ["namespace", NAMESPACE, "--ignore-not-found"];
        for objects in [&pods[..], &namespace] {
            let delete = [&["delete"][..], objects].concat();
            self.cluster.kubectl(&delete).await?.success()?;
        }
        Ok(())
    }

    async fn stop(self) -> Result<()> {
        let cluster = Arc::into_inner(self.cluster).context("the cluster is still in use")?;
        cluster.stop().await
    }
}

/// The only node is one for agents.
async fn with_node(chart: Arc<ChartCluster>) -> Result<()> {
    let label = ["label", "node", life::NODE, "gpu=on"];
    chart.cluster.kubectl(&label).await?.success()?;
    Ok(())
}

/// The kubelet ends for good, and its node is removed.
async fn without_node(chart: Arc<ChartCluster>) -> Result<()> {
    let cluster = &chart.cluster;
    if cluster.pid("kubelet").is_ok() {
        cluster.stop_kubelet().await?;
    }
    let delete = ["delete", "nodes", "--all"];
    cluster.kubectl(&delete).await?.success()?;
    Ok(())
}

/// Runs one version of helm.
type Helm = fn(&[&str]) -> Result<HelmOutput>;

/// Runs helm on a cluster, in the chart's namespace.
fn helm_on(cluster: &Cluster, arguments: &[&str]) -> Result<HelmOutput> {
    run_on(cluster, helm, arguments)
}

/// The same by any version of helm.
fn run_on(cluster: &Cluster, helm: Helm, arguments: &[&str]) -> Result<HelmOutput> {
    let config = cluster.kubeconfig().to_string_lossy().into_owned();
    let mut all = arguments.to_vec();
    all.extend(["-n", NAMESPACE, "--kubeconfig", &config]);
    helm(&all)
}
