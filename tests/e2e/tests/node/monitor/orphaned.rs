//! A pod whose object is gone while its process lives.

use std::sync::Arc;

use aliquot_cluster::until;
use aliquot_cluster::wait::eventually;
use aliquot_e2e::http;
use aliquot_e2e::prometheus::OF_ORPHANED;
use aliquot_e2e::stack::{Kind, Stack};
use anyhow::Result;

use super::running::{CONTEXT, MIB, PATIENCE, becomes, beside, figure, monitored, over, pod};

/// While the kubelet is down a pod is deleted by force: its share stays allocated and measured
/// until the kubelet comes back and kills the process.
pub(crate) async fn force_deleted(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    monitored(stack, "orphaned", &[]).await?;
    pod(stack, "orphaned", "gone", "3000").await?;
    let used = "aliquot_share_memory_used_bytes";
    let orphaned = || async {
        let scheduler = stack.address(Kind::Scheduler);
        let [cores, memory] = OF_ORPHANED;
        let cores = http::metric(scheduler, cores, &[]).await?;
        let allocated = http::metric(scheduler, memory, &[]).await?;
        let replicas = figure(stack, "aliquot_monitor_orphaned_containers", &[]).await?;
        // In percent.
        anyhow::Ok((allocated, replicas, (100.0 * cores).round()))
    };
    let checks = async {
        becomes(stack, used, "gone", (1000.0 + CONTEXT) * MIB).await?;
        stack.cluster.stop_kubelet().await?;
        let delete = [
            "delete",
            "pod",
            "-n",
            "orphaned",
            "gone",
            "--force",
            "--grace-period=0",
        ];
        stack.cluster.kubectl(&delete).await?.success()?;
        eventually(PATIENCE, "the share to be orphaned", || async {
            let found = orphaned().await?;
            until!(found == (3000.0 * MIB, 1.0, 20.0), "{found:?}");
            Ok(Some(()))
        })
        .await?;
        becomes(stack, used, "gone", (1000.0 + CONTEXT) * MIB).await
    };
    beside(stack, ("orphaned", "gone"), &["init", "alloc,1000"], checks).await?;
    stack.cluster.start_kubelet().await?;
    eventually(PATIENCE, "the share to be free", || async {
        let found = orphaned().await?;
        until!(found == (0.0, 0.0, 0.0), "{found:?}");
        Ok(Some(()))
    })
    .await?;
    over(stack, "orphaned").await
}
