//! Karpenter, with its kwok provider, on a control plane: which nodes pending shares make it add,
//! and which it removes.

use std::process::ExitCode;
use std::sync::Arc;

use aliquot_cluster::{Cluster, karpenter};
use aliquot_e2e::scenario::{self, scenario, world};
use aliquot_e2e::stack::{NAMESPACE, Stack};
use anyhow::{Context as _, Result};

mod fleet;
mod scaled;

fn main() -> ExitCode {
    let all = vec![
        scenario(
            "one_pending_share_adds_one_node_that_leaves_when_empty",
            scaled::one_share,
        )
        .long(),
        scenario(
            "hundred_shares_add_the_nodes_of_the_oracle_from_zero",
            scaled::from_zero,
        )
        .long(),
        scenario(
            "hundred_shares_add_what_a_warm_pool_lacks",
            scaled::from_warm_pool,
        )
        .long(),
        scenario(
            "consolidation_moves_no_share_that_has_nowhere_to_go",
            scaled::consolidated,
        )
        .long(),
    ];
    scenario::main(cluster, vec![world(parts, all)])
}

async fn cluster() -> Result<Stack> {
    // Pods that kube-scheduler refused while there was no node are tried again soon.
    let cluster = Cluster::control_plane().extender();
    let cluster = cluster.scheduler_arg("--pod-max-in-unschedulable-pods-duration=5s");
    Stack::on(Box::pin(cluster.start()).await?).await
}

async fn parts(stack: Arc<Stack>) -> Result<()> {
    let cluster = &stack.cluster;
    let types = fleet::node_types();
    let value = ("scheduler.autoscaler.nodeTypes".to_owned(), types.clone());
    cluster.install_rights_with(&[value]).await?;
    let types = types.to_string();
    stack
        .start_scheduler(&["--node-types", &types, "--namespace", NAMESPACE])
        .await?;
    // As in the chart, where an autoscaler is enabled.
    stack.start_webhook(&["--retain-priority=true"]).await?;
    let program = karpenter().await?;
    let crds = program.with_file_name("crds");
    let crds = crds.to_str().context("the cache's path is no text")?;
    cluster.kubectl(&["apply", "-f", crds]).await?.success()?;
    cluster.wait_established().await?;
    let types = stack.write("instance-types.json", &fleet::instance_types().to_string())?;
    let pool = stack.write("pool.json", &fleet::pool().to_string())?;
    let (types, pool) = (types.display().to_string(), pool.display().to_string());
    let kubeconfig = cluster.kubeconfig().display().to_string();
    let arguments = [
        "--disable-leader-election=true",
        "--metrics-port=0",
        "--health-probe-port=0",
        "--instance-types-file-path",
        &types,
    ];
    let environment = [("KUBECONFIG", kubeconfig.as_str())];
    let part = cluster.start_part("karpenter", &program, &arguments, &environment)?;
    part.leave_running();
    cluster.kubectl(&["apply", "-f", &pool]).await?.success()?;
    Ok(())
}
