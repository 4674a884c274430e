//! The checks of the scheduler: its replicas, their leader, and its ledger.

use k8s_openapi::api::core::v1::Pod;

use super::facts::ClusterFacts;
use super::finding::{About, Checked, Finding, ok, problem, warning};
use super::request_form::minor;
use crate::access::LEADS;
use crate::components::{UNREADY, containers, flag, is_ready, running_pods};
use crate::metrics;
use crate::table::counted;

/// The metric of entries of the ledger that differed from the pods.
const DIFFERENCES: &str = "aliquot_scheduler_self_check_differences_total";
/// The container of kube-scheduler beside ours, and the check of its version.
const KUBE_SCHEDULER: &str = "kube-scheduler";

pub(super) fn checks(facts: &ClusterFacts, about: &About) -> Vec<Finding> {
    let pods = facts.pods.as_deref().unwrap_or_default();
    let has_lease = |pod: &Pod| flag(pod, "--scheduler-lease").is_some();
    // Beside an external kube-scheduler there is one: a second one would have a ledger of its own.
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
    let ready = pods.iter().filter(|pod| is_ready(pod)).count();
    let found = format!("{ready} of {} {part} pods are ready", pods.len());
    match (ready, single) {
        (0, _) => problem(found, none),
        (some, _) if some < pods.len() => problem(found, UNREADY),
        (1, Some(todo)) => warning(found, todo),
        _ => ok(found),
    }
}

/// The registry has kube-scheduler's image, and its version is the API server's. Of an external
/// kube-scheduler nothing is known.
fn version(facts: &ClusterFacts) -> Option<Checked> {
    // The check of the replicas reports pods that cannot be read.
    let pods = facts.pods.as_deref().unwrap_or_default();
    let images: Vec<(&str, bool)> = running_pods(pods, "scheduler")
        .filter_map(|pod| {
            let mut all = containers(pod);
            let container = all.find(|one| one.name == KUBE_SCHEDULER)?;
            Some((container.image.as_deref()?, lacks_image(pod)))
        })
        .collect();
    let first = images.first()?.0;
    let server = match &facts.version {
        Ok(version) => version,
        Err(why) => return Some(Err(why.clone())),
    };
    if let Some((image, _)) = images.iter().find(|(_, lacks)| *lacks) {
        return Some(problem(
            format!("the image {image} cannot be pulled; the API server's version is {server}"),
            "set scheduler.kubeScheduler.image.tag to a patch release of this minor version that the registry has",
        ));
    }
    let behind = |image: &str| Some(i64::from(minor(server)?) - i64::from(image_minor(image)?));
    let differs = |image: &&str| behind(image).is_some_and(|minors| minors != 0);
    let image = images.iter().map(|(image, _)| *image).rfind(differs);
    let image = image.unwrap_or(first);
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

/// Whether the pod waits for kube-scheduler's image, which the registry does not give.
fn lacks_image(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let statuses = status.and_then(|status| status.container_statuses.as_deref());
    statuses
        .unwrap_or_default()
        .iter()
        .filter(|one| one.name == KUBE_SCHEDULER)
        .filter_map(|one| one.state.as_ref()?.waiting.as_ref()?.reason.as_deref())
        .any(|reason| ["ErrImagePull", "ImagePullBackOff"].contains(&reason))
}

/// One replica leads, by its own metric.
fn leader(facts: &ClusterFacts) -> Checked {
    if metrics::sum(facts.metrics.as_ref()?, LEADS).is_some_and(|leads| leads > 0.0) {
        return ok("a scheduler leads");
    }
    problem(
        "no scheduler leads: no GPU pod is bound",
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
