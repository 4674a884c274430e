//! The preempt verb: kube-scheduler wants to evict pods and asks the extender.
//!
//! A node stays in the answer if the pod fits there once the victims are gone, with more victims
//! where these are needed: after their end filter would accept the node. Calls for pods without our
//! resources, and nodes whose victims suffice, are answered unchanged.

use aliquot_core::PodUid;
use aliquot_k8s::disruption;
use aliquot_k8s::extender::{ExtenderPreemptionArgs, ExtenderPreemptionResult, MetaPod};
use aliquot_k8s::pod;
use tokio::time::Instant;

use super::unix;
use crate::ledger_cache::LedgerCache;

/// The answer to one call.
pub fn answer(cache: &LedgerCache, body: &[u8]) -> Result<ExtenderPreemptionResult, String> {
    let args: ExtenderPreemptionArgs = serde_json::from_slice(body)
        .map_err(|error| format!("cannot read the extender call: {error}"))?;
    let pod = args.pod.as_ref().ok_or("the extender call has no Pod")?;
    let demand = pod::demand(pod, cache.settings())
        .map_err(|error| format!("the pod's GPU request is invalid: {error}"))?;
    let uid = pod::uid(pod);
    let mut nodes = args.victims();
    if demand.requests_gpu() {
        let priority = disruption::priority(pod);
        let now = unix();
        nodes.retain(|node, victims| {
            let chosen: Vec<PodUid> = victims.pods.iter().map(|p| p.uid.as_str().into()).collect();
            let request = (&demand, priority);
            let more = cache.victims_beside(&uid, request, (&node.as_str().into(), &chosen), now);
            let helps = more.is_some();
            let more = more.unwrap_or_default().into_iter();
            victims.pods.extend(more.map(|uid| MetaPod {
                uid: uid.to_string(),
            }));
            helps
        });
        if !nodes.is_empty() && !cache.leave_to_kube_scheduler(&uid, Instant::now()) {
            nodes.clear();
        }
    }
    Ok(ExtenderPreemptionResult {
        node_name_to_meta_victims: Some(nodes),
    })
}
