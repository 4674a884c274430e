//! The checks of the cluster as a whole.
//!
//! Fed by: [`Known`]. Must not: ask anybody.

use aliquot_core::mig;
use aliquot_core::request::Resource;
use aliquot_k8s::pod;
use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use super::admission;
use super::finding::{About, Finding};
use super::known::{self, Known, NAMES, is_ours, is_ready, metric, name, names};
use crate::table::counted;

/// Every one of them.
pub fn checks(known: &Known) -> Vec<Finding> {
    let about = About::cluster();
    let mut found = Vec::new();
    found.extend(scheduler(known, &about));
    found.extend(config(known, &about));
    found.extend(admission::checks(known, &about));
    found.extend(same_names(known, &about));
    found.extend(books(known, &about));
    found
}

/// The pods of a part, those that ended left out.
pub(super) fn of<'a>(pods: &'a [Pod], part: &'a str) -> impl Iterator<Item = &'a Pod> {
    pods.iter()
        .filter(move |pod| is_ours(pod, part) && !pod::ended(pod))
}

/// It runs, twice, and one of them leads.
fn scheduler(known: &Known, about: &About) -> Vec<Finding> {
    let check = "scheduler";
    let pods = match &known.pods {
        Ok(pods) => pods,
        Err(why) => return vec![about.unknown(check, why)],
    };
    let all: Vec<&Pod> = of(pods, "scheduler").collect();
    let ready: Vec<&str> = all
        .iter()
        .filter(|pod| is_ready(pod))
        .map(|pod| name(pod))
        .collect();
    let count = format!(
        "scheduler pods that are ready: {} of {}",
        ready.len(),
        all.len()
    );
    if ready.is_empty() {
        let todo = "kubectl logs of its containers `kube-scheduler` and `scheduler`; no GPU pod is placed meanwhile";
        return vec![about.problem(check, count, todo)];
    }
    let elects = all
        .iter()
        .any(|pod| known::flag(pod, "--scheduler-lease").is_some());
    let mut found = vec![match ready.len() {
        1 if elects => about.warning(
            check,
            count,
            "scheduler.replicas=2: with one, GPU pods wait while it restarts",
        ),
        1 => about.ok(
            check,
            "the one that another's kube-scheduler asks: two would keep two books",
        ),
        _ => about.ok(check, count),
    }];
    let check = "leader";
    found.push(match &known.leader {
        _ if !elects => about.ok(check, "a single replica, which needs no lease"),
        Err(why) => about.unknown(check, why),
        Ok(None) => about.problem(
            check,
            "nobody holds the lease aliquot-scheduler, so no pod is bound",
            "kubectl logs of the container kube-scheduler says why it gets none: rights, or the API server",
        ),
        // kube-scheduler's identity: the pod's name, `_` and a number.
        Ok(Some(holder)) => match ready.iter().find(|pod| holder.starts_with(&format!("{pod}_"))) {
            Some(pod) => about.ok(check, format!("{pod} leads")),
            None => about.problem(
                check,
                format!("{holder} holds the lease, and is no scheduler pod that is ready"),
                "where it is another kube-scheduler's, give one of the two another lease; else wait until it has run out",
            ),
        },
    });
    found
}

/// kube-scheduler asks us, about the resources that are ours.
fn config(known: &Known, about: &About) -> Vec<Finding> {
    let check = "scheduler-config";
    let todo =
        "take it from charts/aliquot/files/kube-scheduler.yaml, and restart the scheduler's pods";
    let text = match &known.config {
        Err(why) => return vec![about.unknown(check, why)],
        Ok(None) => {
            let what = "there is no ConfigMap aliquot-kube-scheduler; a configuration of your own is not looked at";
            return vec![about.unknown(check, what)];
        }
        Ok(Some(text)) => text,
    };
    let config: Value = match serde_saphyr::from_str(text) {
        Ok(config) => config,
        Err(error) => {
            let what = format!("the configuration cannot be read: {error}");
            return vec![about.problem(check, what, todo)];
        }
    };
    let extenders = config["extenders"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let ours = extenders.iter().find(|one| one["bindVerb"] == "bind");
    let Some(ours) = ours else {
        let what = "no extender that binds is registered: kube-scheduler never asks Aliquot";
        return vec![about.problem(check, what, todo)];
    };
    let mut found = Vec::new();
    for (key, wanted, why) in [
        (
            "filterVerb",
            Value::from("filter"),
            "pods are bound to nodes without room",
        ),
        (
            "prioritizeVerb",
            "prioritize".into(),
            "the policies have no say",
        ),
        ("nodeCacheCapable", true.into(), "nothing is booked"),
    ] {
        if ours[key] != wanted {
            let what = format!(
                "{key} of the extender is {}, not {wanted}: {why}",
                ours[key]
            );
            found.push(about.problem(check, what, todo));
        }
    }
    if ours["ignorable"] == true {
        let what = "ignorable is true: pods are bound past the books while our part is away";
        found.push(about.problem(check, what, todo));
    }
    found.extend(managed(known, ours, about, todo));
    if found.is_empty() {
        let what = "the extender is registered for all our resources";
        found.push(about.ok(check, what));
    }
    found
}

/// The extender's list of resources has ours.
fn managed(known: &Known, ours: &Value, about: &About, todo: &str) -> Vec<Finding> {
    let check = "managed-resources";
    let list = ours["managedResources"].as_array();
    let Some(list) = list.filter(|list| !list.is_empty()) else {
        let what = "managedResources is empty: every pod of this scheduler waits for us";
        return vec![about.warning(check, what, todo)];
    };
    let Ok(pods) = &known.pods else {
        return Vec::new();
    };
    let Some(part) = of(pods, "scheduler").next() else {
        return Vec::new();
    };
    let named = names(part);
    let mut wanted: Vec<&str> = Resource::ALL.iter().map(|one| named.of(*one)).collect();
    let extra = known::flag(part, "--extra-resources").unwrap_or_default();
    wanted.extend(extra.split(',').filter(|name| !name.is_empty()));
    let entry = |name: &str| list.iter().find(|one| one["name"] == name);
    let missing: Vec<&str> = wanted
        .iter()
        .copied()
        .filter(|name| entry(name).is_none())
        .collect();
    let mut found = Vec::new();
    if !missing.is_empty() {
        let what = format!(
            "{} not in managedResources: pods that ask for nothing else are bound past the books",
            missing.join(", ")
        );
        found.push(about.problem(check, what, todo));
    }
    if !list.iter().any(|one| {
        one["name"]
            .as_str()
            .is_some_and(|n| n.starts_with(mig::RESOURCES))
    }) {
        let what = format!(
            "no {}… in managedResources: MIG instances cannot be asked for",
            mig::RESOURCES
        );
        found.push(about.warning(check, what, todo));
    }
    let judged: Vec<&str> = wanted
        .into_iter()
        .filter(|name| entry(name).is_some_and(|one| one["ignoredByScheduler"] != true))
        .collect();
    if !judged.is_empty() {
        let what = format!(
            "kube-scheduler itself judges {}: no node publishes gpumem and the others, and pods that wait for seats sleep on when they are back",
            judged.join(", ")
        );
        found.push(about.problem(check, what, todo));
    }
    found
}

/// The parts call the resources the same.
fn same_names(known: &Known, about: &About) -> Vec<Finding> {
    let check = "resource-names";
    let Ok(pods) = &known.pods else {
        return Vec::new();
    };
    let Some(scheduler) = of(pods, "scheduler").next() else {
        return Vec::new();
    };
    let usual = names(scheduler);
    let mut found = Vec::new();
    for part in ["webhook", "device-plugin"] {
        let Some(pod) = of(pods, part).next() else {
            continue;
        };
        let own = names(pod);
        // The agent has no flag for the other two.
        let of_part = NAMES.iter().filter(|(resource, _)| {
            let both = [Resource::MemoryPercentage, Resource::Priority];
            part == "webhook" || !both.contains(resource)
        });
        for (resource, flag) in of_part {
            let (one, other) = (usual.of(*resource), own.of(*resource));
            if one != other {
                let what = format!("{flag} is {one} at the scheduler and {other} at the {part}");
                found.push(about.problem(
                    check,
                    what,
                    "give all parts the same: the chart's values resourceName and the others",
                ));
            }
        }
    }
    if found.is_empty() {
        found.push(about.ok(check, "all parts use the same names"));
    }
    found
}

/// The books are what the pods say.
fn books(known: &Known, about: &About) -> Vec<Finding> {
    let check = "books";
    let mut found = vec![match &known.differences {
        Err(why) => about.unknown(check, why),
        Ok(differences) if differences.is_empty() => {
            let count = known.books.as_ref().map_or(0, |books| books.bookings.len());
            about.ok(
                check,
                format!("{}, as the pods say", counted(count, "booking", "bookings")),
            )
        }
        Ok(differences) => {
            let some = differences
                .iter()
                .take(5)
                .cloned()
                .collect::<Vec<_>>()
                .join("; ");
            about.problem(
                check,
                format!("{}: {some}", counted(differences.len(), "pod differs", "pods differ")),
                "restart the scheduler's pods: books are made anew from the pods; keep its log, this is a fault of ours",
            )
        }
    }];
    let check = "books-self-check";
    found.push(match &known.metrics {
        Err(why) => about.unknown(check, why),
        Ok(page) => match metric(page, "aliquot_scheduler_self_check_differences_total") {
            None => about.unknown(
                check,
                "the scheduler has no such metric; is it of this release?",
            ),
            Some(0.0) => about.ok(check, "never differed from recomputed ones"),
            Some(count) => about.warning(
                check,
                format!(
                    "differed {} from recomputed ones, which were adopted",
                    counted(count, "time", "times")
                ),
                "a fault of ours: the scheduler's log has each difference",
            ),
        },
    });
    found
}
