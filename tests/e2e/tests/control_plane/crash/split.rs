//! Waits until so many pods of a scenario are bound and the others refused.

use aliquot_cluster::until;
use aliquot_cluster::wait::{PATIENCE, eventually, give_up};
use aliquot_e2e::pool::{Pool, node_of};
use aliquot_e2e::stack::Stack;
use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;

/// The names of the refused pods of the pool.
pub(crate) async fn split(stack: &Stack, pool: &Pool<'_>, bound: usize) -> Result<Vec<String>> {
    let pods: Api<Pod> = Api::namespaced(stack.cluster.admin()?, pool.name);
    let what = format!(
        "{bound} pods of {} to be bound, the rest refused",
        pool.name
    );
    eventually(PATIENCE, &what, || async {
        let all = pods.list(&ListParams::default()).await?.items;
        let total = all.len();
        let (placed, rest): (Vec<_>, Vec<_>) = all.into_iter().partition(|p| node_of(p).is_some());
        if placed.len() > bound {
            return Err(give_up(format!("{} are bound", placed.len())));
        }
        let refused: Vec<_> = rest.into_iter().filter(is_refused).collect();
        until!(
            placed.len() == bound && bound + refused.len() == total,
            "of {total} pods {} are bound, {} refused",
            placed.len(),
            refused.len()
        );
        Ok(Some(
            refused.into_iter().filter_map(|pod| pod.metadata.name),
        ))
    })
    .await
    .map(Iterator::collect)
}

fn is_refused(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
    conditions.is_some_and(|conditions| {
        conditions.iter().any(|condition| {
            condition.type_ == "PodScheduled"
                && condition.reason.as_deref() == Some("Unschedulable")
                && condition
                    .message
                    .as_deref()
                    .is_some_and(|m| m.contains("GPU request "))
        })
    })
}
