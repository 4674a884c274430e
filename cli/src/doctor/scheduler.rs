//! The checks of the scheduler: its replicas, kube-scheduler's configuration, and the resource names that
//! all components share.

use aliquot_core::mig;
use aliquot_core::request::Resource;
use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use super::facts::ClusterFacts;
use super::finding::{About, Finding};
use crate::components::{NAMES, UNREADY, flag, is_ready, name, names, running_pods};

/// Two replicas are ready and one of them is the leader; or the scheduler runs without a pod.
pub(super) fn replicas(facts: &ClusterFacts, about: &About) -> Vec<Finding> {
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
    if all.is_empty() && facts.ledger.is_ok() {
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

/// kube-scheduler calls the extender, for Aliquot's resources.
pub(super) fn config(facts: &ClusterFacts, about: &About) -> Vec<Finding> {
    let check = "scheduler-config";
    let todo = "copy the extender's section from charts/aliquot/files/kube-scheduler.yaml and restart the scheduler pods";
    let text = match &facts.config {
        Err(why) => return vec![about.unknown(check, why)],
        Ok(None) => {
            let what = "there is no ConfigMap aliquot-kube-scheduler; a configuration under another name is not checked";
            return vec![about.unknown(check, what)];
        }
        Ok(Some(text)) => text,
    };
    let config: Value = match serde_saphyr::from_str(text) {
        Ok(config) => config,
        Err(error) => {
            let what = format!("ConfigMap aliquot-kube-scheduler cannot be parsed: {error}");
            return vec![about.problem(check, what, todo)];
        }
    };
    let extenders = config["extenders"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let ours = extenders.iter().find(|one| one["bindVerb"] == "bind");
    let Some(ours) = ours else {
        let what =
            "no extender with bindVerb: bind is configured: kube-scheduler never calls Aliquot";
        return vec![about.problem(check, what, todo)];
    };
    let mut found = Vec::new();
    for (key, expected, why) in [
        (
            "filterVerb",
            Value::from("filter"),
            "pods are bound to nodes without free capacity",
        ),
        (
            "prioritizeVerb",
            "prioritize".into(),
            "the scheduling policies have no effect",
        ),
        (
            "nodeCacheCapable",
            true.into(),
            "nothing is recorded in the ledger",
        ),
    ] {
        if ours[key] != expected {
            let what = format!(
                "the extender's {key} is {}, expected {expected}: {why}",
                ours[key]
            );
            found.push(about.problem(check, what, todo));
        }
    }
    if ours["ignorable"] == true {
        let what = "the extender's ignorable is true, expected false: while the extender is down, pods are bound without an allocation";
        found.push(about.problem(check, what, todo));
    }
    found.extend(managed_resources(facts, ours, about, todo));
    if found.is_empty() {
        let what = "the extender is registered for all of Aliquot's resources";
        found.push(about.ok(check, what));
    }
    found
}

/// The extender's managedResources has all of Aliquot's resources.
fn managed_resources(
    facts: &ClusterFacts,
    ours: &Value,
    about: &About,
    todo: &str,
) -> Vec<Finding> {
    let check = "managed-resources";
    let list = ours["managedResources"].as_array();
    let Some(list) = list.filter(|list| !list.is_empty()) else {
        let what = "the extender's managedResources is empty: kube-scheduler calls the extender for every pod, also for those without a GPU";
        return vec![about.warning(check, what, todo)];
    };
    let Ok(pods) = &facts.pods else {
        return Vec::new();
    };
    let Some(part) = running_pods(pods, "scheduler").next() else {
        return Vec::new();
    };
    let named = names(part);
    let mut expected: Vec<&str> = Resource::ALL.iter().map(|one| named.of(*one)).collect();
    let extra = flag(part, "--extra-resources").unwrap_or_default();
    expected.extend(extra.split(',').filter(|name| !name.is_empty()));
    let entry = |name: &str| list.iter().find(|one| one["name"] == name);
    let missing: Vec<&str> = expected
        .iter()
        .copied()
        .filter(|name| entry(name).is_none())
        .collect();
    let mut found = Vec::new();
    if !missing.is_empty() {
        let what = format!(
            "managedResources does not have {}: pods that request only that are bound without an allocation",
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
            "managedResources has no {}…: MIG instances cannot be requested",
            mig::RESOURCES
        );
        found.push(about.warning(check, what, todo));
    }
    let checked: Vec<&str> = expected
        .into_iter()
        .filter(|name| entry(name).is_some_and(|one| one["ignoredByScheduler"] != true))
        .collect();
    if !checked.is_empty() {
        let what = format!(
            "ignoredByScheduler is not true for {}: kube-scheduler checks these resources itself; no node publishes memory and compute as resources, and pods that wait for a replica are not requeued when one becomes free",
            checked.join(", ")
        );
        found.push(about.problem(check, what, todo));
    }
    found
}

/// All components use the same resource names.
pub(super) fn same_names(facts: &ClusterFacts, about: &About) -> Vec<Finding> {
    let check = "resource-names";
    let Ok(pods) = &facts.pods else {
        return Vec::new();
    };
    let Some(scheduler) = running_pods(pods, "scheduler").next() else {
        return Vec::new();
    };
    let usual = names(scheduler);
    let mut found = Vec::new();
    for part in ["webhook", "device-plugin"] {
        let Some(pod) = running_pods(pods, part).next() else {
            continue;
        };
        let own = names(pod);
        // The agent has no flags for the memory percentage and the priority.
        let of_part = NAMES.iter().filter(|(resource, _)| {
            let both = [Resource::MemoryPercentage, Resource::Priority];
            part == "webhook" || !both.contains(resource)
        });
        for (resource, flag) in of_part {
            let (one, other) = (usual.of(*resource), own.of(*resource));
            if one != other {
                let what = format!("{flag} is {one} in the scheduler and {other} in the {part}");
                found.push(about.problem(
                    check,
                    what,
                    "set the same names in all components: the chart's values resourceName, resourceMem, resourceMemPercentage, resourceCores and resourcePriority",
                ));
            }
        }
    }
    if found.is_empty() {
        found.push(about.ok(check, "all components use the same resource names"));
    }
    found
}
