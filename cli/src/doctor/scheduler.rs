//! The checks of the scheduler: its replicas, their leader, and its ledger.

use k8s_openapi::api::core::v1::Pod;

use super::facts::ClusterFacts;
use super::finding::{About, Finding};
use crate::components::{UNREADY, flag, is_ready, name, running_pods};
use crate::metrics;
use crate::table::counted;

/// The findings of all of them.
pub(super) fn checks(facts: &ClusterFacts, about: &About) -> Vec<Finding> {
    let mut found = replicas(facts, about);
    found.push(self_check(facts, about));
    found
}

/// Two replicas are ready and one of them is the leader; or the scheduler runs without a pod.
fn replicas(facts: &ClusterFacts, about: &About) -> Vec<Finding> {
    let check = "scheduler";
    let pods = match &facts.pods {
        Ok(pods) => pods,
        Err(why) => return vec![about.unknown(check, why)],
    };
    let all: Vec<&Pod> = running_pods(pods, "scheduler").collect();
    let ready: Vec<&str> = all
        .iter()
        .filter(|pod| is_ready(pod))
        .map(|pod| name(pod))
        .collect();
    let count = format!("{} of {} scheduler pods are ready", ready.len(), all.len());
    if all.is_empty() && facts.metrics.is_ok() {
        let what = "there is no scheduler pod, but the scheduler answers at the given address";
        return vec![about.ok(check, what)];
    }
    if ready.is_empty() {
        let todo = "no GPU pod is scheduled until one is ready: read the logs of its containers kube-scheduler and scheduler";
        return vec![about.problem(check, count, todo)];
    }
    let elects = all
        .iter()
        .any(|pod| flag(pod, "--scheduler-lease").is_some());
    let mut found = vec![match ready.len() {
        some if some < all.len() => about.problem(check, count, UNREADY),
        1 if elects => about.warning(
            check,
            count,
            "set scheduler.replicas=2: with one replica, GPU pods stay pending while it restarts",
        ),
        1 => about.ok(
            check,
            "one extender for an external kube-scheduler, as required: a second one would have a ledger of its own",
        ),
        _ => about.ok(check, count),
    }];
    let check = "leader";
    found.push(match &facts.leader {
        _ if !elects => about.ok(check, "a single replica needs no lease"),
        Err(why) => about.unknown(check, why),
        Ok(None) => about.problem(
            check,
            "the lease aliquot-scheduler has no holder: no GPU pod is bound",
            "read the log of the container kube-scheduler: it reports why it cannot acquire the lease, such as missing permissions or an unreachable API server",
        ),
        // kube-scheduler's identity: the pod's name, `_` and a number.
        Ok(Some(holder)) => match ready.iter().find(|pod| holder.starts_with(&format!("{pod}_"))) {
            Some(pod) => about.ok(check, format!("{pod} is the leader")),
            None => about.problem(
                check,
                format!("the lease aliquot-scheduler is held by {holder}, which is not a ready scheduler pod"),
                "if another kube-scheduler uses this lease, give one of the two another lease name; otherwise wait until the lease expires",
            ),
        },
    });
    found
}

/// The ledger never differed from the pods: the scheduler recomputes it from them all the time.
fn self_check(facts: &ClusterFacts, about: &About) -> Finding {
    let check = "ledger";
    let metric = "aliquot_scheduler_self_check_differences_total";
    let differences = match &facts.metrics {
        Err(why) => return about.unknown(check, why),
        Ok(page) => metrics::sum(page, metric),
    };
    match differences {
        None => about.unknown(
            check,
            format!("the scheduler has no metric {metric}; is it of this release?"),
        ),
        Some(0.0) => about.ok(check, "the ledger never differed from the pods"),
        Some(count) => about.warning(
            check,
            format!(
                "the ledger differed {} from the pods, and was corrected",
                counted(count, "time", "times")
            ),
            "this is a bug in Aliquot: report it with the scheduler's log, which has each difference",
        ),
    }
}
