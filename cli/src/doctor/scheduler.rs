//! The checks of the scheduler: its replicas, their leader, and its ledger.

use k8s_openapi::api::core::v1::Pod;

use super::facts::ClusterFacts;
use super::finding::{About, Finding};
use crate::access::LEADS;
use crate::components::{UNREADY, flag, is_ready, running_pods};
use crate::metrics;
use crate::table::counted;

/// The metric of entries of the ledger that differed from the pods.
const DIFFERENCES: &str = "aliquot_scheduler_self_check_differences_total";

/// The findings of all of them.
pub(super) fn checks(facts: &ClusterFacts, about: &About) -> Vec<Finding> {
    let mut found = vec![replicas(facts, about)];
    match &facts.metrics {
        Err(why) => found.extend(["leader", "ledger"].map(|check| about.unknown(check, why))),
        Ok(page) => found.extend([leader(page, about), ledger(page, about)]),
    }
    found
}

/// Two replicas are ready; or the scheduler runs without a pod.
fn replicas(facts: &ClusterFacts, about: &About) -> Finding {
    let check = "scheduler";
    let pods = match &facts.pods {
        Ok(pods) => pods,
        Err(why) => return about.unknown(check, why),
    };
    let all: Vec<&Pod> = running_pods(pods, "scheduler").collect();
    let ready = all.iter().filter(|pod| is_ready(pod)).count();
    let count = format!("{ready} of {} scheduler pods are ready", all.len());
    let elects = || {
        all.iter()
            .any(|pod| flag(pod, "--scheduler-lease").is_some())
    };
    match ready {
        0 if all.is_empty() && facts.metrics.is_ok() => about.ok(
            check,
            "there is no scheduler pod, but the scheduler answers at the given address",
        ),
        0 => about.problem(
            check,
            count,
            "no GPU pod is scheduled until one is ready: read the logs of its containers kube-scheduler and scheduler",
        ),
        some if some < all.len() => about.problem(check, count, UNREADY),
        1 if elects() => about.warning(
            check,
            count,
            "set scheduler.replicas=2: with one replica, GPU pods stay pending while it restarts",
        ),
        1 => about.ok(
            check,
            "one extender for an external kube-scheduler, as required: a second one would have a ledger of its own",
        ),
        _ => about.ok(check, count),
    }
}

/// One replica leads, by its own metric.
fn leader(page: &str, about: &About) -> Finding {
    let check = "leader";
    if metrics::sum(page, LEADS).is_some_and(|leads| leads > 0.0) {
        return about.ok(check, "a scheduler leads");
    }
    about.problem(
        check,
        "no scheduler leads: no GPU pod is bound",
        "read the log of the container kube-scheduler: it reports why it cannot acquire the lease aliquot-scheduler, such as missing permissions, an unreachable API server, or another kube-scheduler with this lease",
    )
}

/// The ledger never differed from the pods: the scheduler recomputes it from them all the time.
fn ledger(page: &str, about: &About) -> Finding {
    let check = "ledger";
    match metrics::sum(page, DIFFERENCES) {
        None => about.unknown(
            check,
            format!("the scheduler has no metric {DIFFERENCES}; is it of this release?"),
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
