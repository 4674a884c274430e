//! The checks of one node, as far as its objects and its agent tell.
//!
//! Fed by: [`Known`]. Must not: guess what only a process on the node can see; that is
//! [`super::look`]'s.

use std::collections::BTreeMap;

use aliquot_core::inventory::{Gpu, INVENTORY, Inventory, Mode};
use aliquot_core::{NodeName, hami};
use aliquot_k8s::pod;
use k8s_openapi::api::core::v1::{Node, NodeCondition, Pod};

use super::class;
use super::finding::{About, Finding};
use super::known::{Known, is_ours, is_ready, metric, name, unready};
use super::others::others;
use crate::table::counted;

/// Conditions that the agent writes where something is wrong: type, check, what to do.
const TOLD: [(&str, &str, &str); 3] = [
    (
        "AliquotRuntimeIncomplete",
        "container-runtime",
        "docs/guides/container-runtime.md has each reason",
    ),
    ("AliquotGpuSick", "gpu-health", "docs/guides/sick-gpus.md"),
    (
        "AliquotCheckpointLost",
        "kubelet-checkpoint",
        "drain the named pods, or start them again, when it suits you: their shares stay booked",
    ),
];

/// The checks of every node that has GPUs, or of those that were asked for.
pub fn checks(known: &Known, asked: Option<&str>) -> Vec<Finding> {
    let about = About(asked.unwrap_or("cluster").to_owned());
    let nodes = match &known.nodes {
        Ok(nodes) => nodes,
        Err(why) => return vec![about.unknown("nodes", why)],
    };
    let pods = known.pods.as_deref().unwrap_or_default();
    let agent_is_on = |node: &Node| {
        let mut agents = pods.iter().filter(|pod| is_ours(pod, "device-plugin"));
        agents.any(|pod| pod::node(pod).is_some_and(|on| on.as_str() == title(node)))
    };
    let concerned: Vec<&Node> = nodes
        .iter()
        .filter(|node| asked.is_some() || has_gpus(node) || agent_is_on(node))
        .collect();
    if concerned.is_empty() {
        return vec![about.warning(
            "nodes",
            "no node has an inventory or offers a GPU",
            "label the nodes with GPUs as devicePlugin.nvidiaNodeSelector says: kubectl label node NODE gpu=on",
        )];
    }
    concerned
        .into_iter()
        .flat_map(|node| one(known, node, pods))
        .collect()
}

fn title(node: &Node) -> &str {
    node.metadata.name.as_deref().unwrap_or_default()
}

fn annotation<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    node.metadata
        .annotations
        .as_ref()?
        .get(key)
        .map(String::as_str)
}

/// How many of each resource of NVIDIA's the kubelet knows.
fn capacity(node: &Node) -> BTreeMap<&str, u64> {
    let capacity = node
        .status
        .as_ref()
        .and_then(|status| status.capacity.as_ref());
    let all = capacity.into_iter().flatten();
    all.filter_map(|(name, amount)| Some((name.as_str(), amount.0.parse().ok()?)))
        .collect()
}

fn has_gpus(node: &Node) -> bool {
    let offers = |(name, count): (&str, u64)| name.starts_with("nvidia.com/") && count > 0;
    annotation(node, INVENTORY).is_some() || capacity(node).into_iter().any(offers)
}

fn one(known: &Known, node: &Node, pods: &[Pod]) -> Vec<Finding> {
    let about = About(title(node).to_owned());
    let here = |pod: &&Pod| pod::node(pod).is_some_and(|on| on.as_str() == title(node));
    let pods: Vec<&Pod> = pods
        .iter()
        .filter(here)
        .filter(|pod| !pod::ended(pod))
        .collect();
    let mut found = vec![agent(known, node, &pods, &about)];
    let inventory = match annotation(node, INVENTORY).map(Inventory::decode) {
        None => {
            found.push(about.problem(
                "inventory",
                "no agent has published what this node has: no share is placed here",
                "start the agent here: the label of devicePlugin.nvidiaNodeSelector, and its pod's log",
            ));
            found.extend(others(&pods, &about));
            return found;
        }
        Some(Err(error)) => {
            let what = format!("the annotation {INVENTORY} cannot be read: {error}");
            found.push(about.problem("inventory", what, "use one release for all parts"));
            return found;
        }
        Some(Ok(inventory)) => inventory,
    };
    found.push(driver(&inventory, &about));
    found.extend(seats(node, &inventory, &about));
    found.extend(told(node, &about));
    found.extend(class::on(known, node, &about));
    found.push(profile(node, &about));
    found.extend(others(&pods, &about));
    if annotation(node, hami::REGISTER).is_some() {
        found.push(about.problem(
            "hami",
            "HAMi's registration is still on the node: HAMi's scheduler places pods here, too",
            "kubectl annotate node NODE hami.io/node-nvidia-register- hami.io/node-handshake-, and restart HAMi's scheduler",
        ));
    }
    found.extend(accounts(known, node, &about));
    found
}

/// Its agent runs with all its containers, answers, and has reached the kubelet.
fn agent(known: &Known, node: &Node, pods: &[&Pod], about: &About) -> Finding {
    let check = "agent";
    if let Err(why) = &known.pods {
        return about.unknown(check, why);
    }
    let node: NodeName = title(node).into();
    let here = pods.iter().find(|pod| is_ours(pod, "device-plugin"));
    let answer = known.agents.get(&node).map(|agent| &agent.ready);
    match (here, answer) {
        (Some(pod), _) if !is_ready(pod) => {
            let answered = answer.and_then(|ready| ready.as_ref().err());
            let why = unready(pod).or_else(|| answered.cloned());
            let text = format!("{} is not ready: {}", name(pod), why.unwrap_or_default());
            about.problem(
                check,
                text,
                "kubectl describe of the pod, and the log of the container that is named; the kubelet's folder must be devicePlugin.kubeletDir",
            )
        }
        (_, Some(Ok(()))) => about.ok(check, "registered with the kubelet, and its inventory is written"),
        (None, None) => about.problem(
            check,
            "no agent of ours runs here: running pods go on, nothing new starts",
            "kubectl get pods -o wide in our namespace; the label of devicePlugin.nvidiaNodeSelector",
        ),
        (_, Some(Err(why))) => about.unknown(check, why),
        (Some(pod), None) => about.ok(check, format!("{} is ready", name(pod))),
    }
}

fn driver(inventory: &Inventory, about: &About) -> Finding {
    let (check, count) = ("driver", inventory.gpus.len());
    if inventory.driver.is_empty() {
        return about.unknown(check, "the agent did not say which driver runs");
    }
    if count == 0 {
        let what = format!("driver {} shows no GPU", inventory.driver);
        return about.problem(check, what, "nvidia-smi -L on the node");
    }
    about.ok(
        check,
        format!(
            "driver {}, {}",
            inventory.driver,
            counted(count, "unit", "units")
        ),
    )
}

/// The kubelet knows the seats that the inventory has.
fn seats(node: &Node, inventory: &Inventory, about: &About) -> Vec<Finding> {
    let check = "kubelet-seats";
    let mut offered: BTreeMap<&str, u64> = BTreeMap::new();
    // Of a card that is cut as pods come, and while a card changes, the counts differ.
    let steady = |gpu: &&Gpu| gpu.mode != Mode::Mig;
    for gpu in inventory.gpus.iter().filter(steady) {
        *offered.entry(&gpu.resource).or_default() += u64::from(gpu.seats);
    }
    let changing = |name: &str| {
        let mut of = inventory.gpus.iter().filter(|gpu| gpu.resource == name);
        of.any(|gpu| gpu.cordon.is_some())
    };
    let known = capacity(node);
    let mut found = Vec::new();
    for (resource, seats) in offered {
        let count = known.get(resource).copied().unwrap_or(0);
        let what = format!("the kubelet counts {count} {resource}, the inventory has {seats}");
        found.push(match count {
            _ if changing(resource) => about.ok(check, format!("{resource}: a GPU changes its mode")),
            0 if seats > 0 => about.problem(
                check,
                what,
                "the agent is not registered with this kubelet: its log, and devicePlugin.kubeletDir",
            ),
            count if count == seats => about.ok(check, format!("{seats} {resource}")),
            _ => about.warning(
                check,
                what,
                "another device plugin may have registered the same name after ours: see other-plugin; pods that hold seats of an earlier profile keep them, too",
            ),
        });
    }
    found
}

fn condition<'a>(node: &'a Node, kind: &str) -> Option<&'a NodeCondition> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|one| one.type_ == kind)
}

/// What the agent itself found.
fn told(node: &Node, about: &About) -> Vec<Finding> {
    let finding = |(kind, check, todo): (&str, &'static str, &str)| {
        let Some(found) = condition(node, kind).filter(|found| found.status == "True") else {
            return about.ok(check, "the agent tells of nothing");
        };
        let reason = found.reason.as_deref().unwrap_or_default();
        let text = format!("{reason}: {}", found.message.as_deref().unwrap_or_default());
        match reason {
            "CdiUnknown" => about.unknown(check, text),
            "CdiOff" | "DrainNeeded" | "ResetNeeded" => about.problem(check, text, todo),
            _ => about.warning(check, text, todo),
        }
    };
    TOLD.into_iter().map(finding).collect()
}

/// The profile holds.
fn profile(node: &Node, about: &About) -> Finding {
    let check = "profile";
    match condition(node, "AliquotProfile") {
        None => about.ok(check, "no profiles are configured"),
        Some(found) if found.status == "True" => about.ok(check, "the profile holds on every GPU"),
        Some(found) => {
            let reason = found.reason.as_deref().unwrap_or_default();
            let text = format!("{reason}: {}", found.message.as_deref().unwrap_or_default());
            about.warning(check, text, "docs/guides/gpu-profiles.md has each reason")
        }
    }
}

/// What the agent counted against the kubelet's own accounts.
fn accounts(known: &Known, node: &Node, about: &About) -> Vec<Finding> {
    let check = "node-accounts";
    let node: NodeName = title(node).into();
    let page = match known.agents.get(&node).map(|agent| &agent.metrics) {
        None => {
            return vec![about.unknown(check, "the agent was not asked: it has no pod that runs")];
        }
        Some(Err(why)) => return vec![about.unknown(check, why)],
        Some(Ok(page)) => page,
    };
    let counted = |name: &str| metric(page, &format!("aliquot_device_plugin_{name}"));
    let mut found = Vec::new();
    for (name, what) in [
        (
            "audit_differences_total",
            "containers on which the kubelet's PodResources and its checkpoint differed",
        ),
        (
            "damaged_shares",
            "accepted shares that cannot be read back, which count by their pods' annotations",
        ),
        (
            "checkpoint_lost",
            "running shares that the kubelet's checkpoint does not know",
        ),
    ] {
        match counted(name) {
            None => found.push(about.unknown(check, format!("the agent has no metric {name}"))),
            Some(0.0) => {}
            Some(count) => found.push(about.warning(
                check,
                format!("{count} {what}"),
                "the agent's log names them",
            )),
        }
    }
    if found.is_empty() {
        found.push(about.ok(check, "agent, kubelet and checkpoint agree"));
    }
    found
}

#[cfg(test)]
#[path = "node_tests.rs"]
mod tests;
