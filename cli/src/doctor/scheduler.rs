//! The checks of the scheduler: its replicas, their leader, and its ledger.

use k8s_openapi::api::core::v1::Pod;

use super::facts::{ClusterFacts, minor};
use super::finding::{About, Checked, Finding, ok, problem, warning};
use crate::access::LEADS;
use crate::components::{containers, flag, is_ready, running_pods, unready};
use crate::metrics;
use crate::table::counted;

/// The metric of entries of the ledger that differed from the pods.
const DIFFERENCES: &str = "aliquot_scheduler_self_check_differences_total";
/// The container of kube-scheduler beside ours, and the check of its version.
const KUBE_SCHEDULER: &str = "kube-scheduler";

pub(super) fn checks(facts: &ClusterFacts, about: &About) -> Vec<Finding> {
    let pods = facts.pods.as_deref().unwrap_or_default();
    let has_lease = |pod: &Pod| flag(pod, "--scheduler-lease").is_some();
    // Beside an external kube-scheduler there is only one replica: a second would have a ledger of
    // its own.
    let elects = running_pods(pods, "scheduler").any(has_lease);
    let single =
        "set scheduler.replicas=2: with one replica, GPU pods stay pending while it restarts";
    let none = "no GPU pod is scheduled until one is ready: read the logs of its containers kube-scheduler and scheduler";
    let replicas = replicas(facts, "scheduler", none, elects.then_some(single));
    let mut found = about.each([("scheduler", replicas)]);
    found.extend(version(facts).map(|checked| about.finding(KUBE_SCHEDULER, checked)));
    found.extend(about.each([("leader", leader(facts)), ("ledger", ledger(facts))]));
    found
}

/// All replicas of a part are ready. What to do without one, and where there is only one.
pub(super) fn replicas(
    facts: &ClusterFacts,
    part: &str,
    none: &str,
    single: Option<&str>,
) -> Checked {
    let pods: Vec<&Pod> = running_pods(facts.pods.as_deref()?, part).collect();
    let waiting: Vec<&Pod> = pods.iter().copied().filter(|pod| !is_ready(pod)).collect();
    let ready = pods.len() - waiting.len();
    let mut found = format!("{ready} of {} {part} pods are ready", pods.len());
    for why in waiting.iter().filter_map(|pod| unready(pod)) {
        found = format!("{found}; not ready: {why}");
    }
    match (ready, single) {
        // As where the namespace's Pod Security or a quota refuses them.
        _ if pods.is_empty() => problem(
            found,
            format!(
                "kubectl describe replicasets -n {} says why there is none",
                facts.namespace
            ),
        ),
        (0, _) => problem(found, none),
        _ if !waiting.is_empty() => problem(
            found,
            "it may be starting; otherwise kubectl describe the pod, and read its logs",
        ),
        (1, Some(todo)) => warning(found, todo),
        _ => ok(found),
    }
}

/// kube-scheduler's version is the API server's. Of an external one nothing is known.
fn version(facts: &ClusterFacts) -> Option<Checked> {
    // The check of the replicas reports pods that cannot be read.
    let pods = facts.pods.as_deref().unwrap_or_default();
    let containers = running_pods(pods, "scheduler").flat_map(containers);
    let images: Vec<&str> = containers
        .filter(|one| one.name == KUBE_SCHEDULER)
        .filter_map(|one| one.image.as_deref())
        .collect();
    let first = images.first()?;
    let server = match &facts.version {
        Ok(version) => version,
        Err(why) => return Some(Err(why.clone())),
    };
    let behind = |image: &str| Some(i64::from(minor(server)?) - i64::from(image_minor(image)?));
    let differs = |image: &&&str| behind(image).is_some_and(|minors| minors != 0);
    let image = images.iter().find(differs).unwrap_or(first);
    let found = format!("{image} beside an API server of version {server}");
    let todo = "run helm upgrade again, which takes the cluster's version, or set scheduler.kubeScheduler.image.tag";
    Some(match behind(image) {
        None | Some(0) => ok(found),
        // What Kubernetes supports, as during an upgrade of the cluster.
        Some(1) => warning(found, todo),
        Some(_) => problem(found, todo),
    })
}

/// The minor version in the tag of an image.
fn image_minor(image: &str) -> Option<u32> {
    let (_, tag) = image.split('@').next()?.rsplit_once(':')?;
    minor(tag)
}

/// One replica leads, by its own metric.
fn leader(facts: &ClusterFacts) -> Checked {
    if metrics::sum(facts.metrics.as_ref()?, LEADS).is_some_and(|leads| leads > 0.0) {
        return ok("a scheduler leads");
    }
    problem(
        "no scheduler that answers leads: unless another one does, no GPU pod is bound",
        "read the log of the container kube-scheduler: it reports why it cannot acquire the lease aliquot-scheduler, such as missing permissions, an unreachable API server, or another kube-scheduler with this lease",
    )
}

/// The ledger never differed from the pods: the scheduler recomputes it from them all the time.
fn ledger(facts: &ClusterFacts) -> Checked {
    match metrics::sum(facts.metrics.as_ref()?, DIFFERENCES) {
        None => Err(format!(
            "the scheduler has no metric {DIFFERENCES}; is it of this release?"
        )),
        Some(0.0) => ok("the ledger never differed from the pods"),
        Some(count) => warning(
            format!(
                "the ledger differed {} from the pods, and was corrected",
                counted(count, "time", "times")
            ),
            "this is a bug in Aliquot: report it with the scheduler's log, which has each difference",
        ),
    }
}
