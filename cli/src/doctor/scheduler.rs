//! The checks of the scheduler: its replicas, their leader, and its ledger.

use k8s_openapi::api::core::v1::Pod;

use super::facts::ClusterFacts;
use super::finding::{About, Finding};
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
    let mut found = vec![replicas(facts, about)];
    found.extend(version(facts, about));
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

/// The registry has kube-scheduler's image, and its version is the API server's. Of an external
/// kube-scheduler nothing is known.
fn version(facts: &ClusterFacts, about: &About) -> Option<Finding> {
    // The check of the replicas reports pods that cannot be read.
    let pods = facts.pods.as_deref().unwrap_or_default();
    let images: Vec<(&str, bool)> = running_pods(pods, "scheduler")
        .filter_map(|pod| {
            let mut all = containers(pod);
            let container = all.find(|one| one.name == KUBE_SCHEDULER)?;
            Some((container.image.as_deref()?, lacks_image(pod)))
        })
        .collect();
    let mut image = images.first()?.0;
    let server = match &facts.version {
        Ok(version) => version,
        Err(why) => return Some(about.unknown(KUBE_SCHEDULER, why)),
    };
    if let Some((image, _)) = images.iter().find(|(_, lacks)| *lacks) {
        return Some(about.problem(
            KUBE_SCHEDULER,
            format!("the image {image} cannot be pulled; the API server's version is {server}"),
            "set scheduler.kubeScheduler.image.tag to a patch release of this minor version that the registry has",
        ));
    }
    let behind = |image: &str| Some(i64::from(minor(server)?) - i64::from(image_minor(image)?));
    let todo = "run helm upgrade again, which takes the cluster's version, or set scheduler.kubeScheduler.image.tag";
    for (other, _) in &images {
        if behind(other).is_some_and(|minors| minors != 0) {
            image = other;
        }
    }
    let found = format!("{image} beside an API server of version {server}");
    Some(match behind(image) {
        None | Some(0) => about.ok(KUBE_SCHEDULER, found),
        // What Kubernetes supports, as during an upgrade of the cluster.
        Some(1) => about.warning(KUBE_SCHEDULER, found, todo),
        Some(_) => about.problem(KUBE_SCHEDULER, found, todo),
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
