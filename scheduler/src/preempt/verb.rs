//! preemptVerb: kube-scheduler thinks of evicting pods and asks what we say.
//!
//! A node stays in the answer if the pod fits there once the victims are gone, with
//! more victims where that takes some. Pods without our resources, and nodes whose
//! victims suffice, are answered unchanged.
//! Fed by: [`crate::routes`]. Must not: name victims after whose end filter would
//! still refuse.

use aliquot_core::PodUid;
use aliquot_k8s::disruption;
use aliquot_k8s::extender::{ExtenderPreemptionArgs, ExtenderPreemptionResult, MetaPod};
use aliquot_k8s::pod;
use tokio::time::Instant;

use super::unix;
use crate::books::Books;

/// The answer to one call.
pub fn answer(books: &Books, body: &[u8]) -> Result<ExtenderPreemptionResult, String> {
    let args: ExtenderPreemptionArgs = serde_json::from_slice(body)
        .map_err(|error| format!("cannot read the extender call: {error}"))?;
    let pod = args.pod.as_ref().ok_or("the extender call has no Pod")?;
    let demand = pod::demand(pod, books.settings())
        .map_err(|error| format!("the pod's GPU request cannot be read: {error}"))?;
    let uid = pod::uid(pod);
    let mut nodes = args.victims();
    if demand.asks() {
        let priority = disruption::priority(pod);
        let now = unix();
        nodes.retain(|node, victims| {
            let kubes: Vec<PodUid> = victims.pods.iter().map(|p| p.uid.as_str().into()).collect();
            let asked = (&demand, priority);
            let more = books.victims_beside(&uid, asked, (&node.as_str().into(), &kubes), now);
            let helps = more.is_some();
            let more = more.unwrap_or_default().into_iter();
            victims.pods.extend(more.map(|uid| MetaPod {
                uid: uid.to_string(),
            }));
            helps
        });
        if !nodes.is_empty() && !books.leave_to_kube(&uid, Instant::now()) {
            nodes.clear();
        }
    }
    Ok(ExtenderPreemptionResult {
        node_name_to_meta_victims: Some(nodes),
    })
}
