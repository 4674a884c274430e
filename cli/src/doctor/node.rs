//! Checks of one node, by its objects and the answers of its agent.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_core::allocation::ALLOCATION;
use aliquot_core::inventory::{Gpu, INVENTORY, Inventory, Mode};
use aliquot_core::{Allocation, NodeName, hami};
use aliquot_k8s::pod;
use k8s_openapi::api::core::v1::{Node, NodeCondition, Pod};

use super::facts::ClusterFacts;
use super::finding::{About, Finding};
use super::other_plugins::other_plugins;
use super::runtime_class;
use crate::components::{containers, is_ours, is_ready, name, unready};
use crate::table::counted;
use crate::{metrics, snapshot};

/// Conditions that the agent sets on its node: type, check, what to do.
const CONDITIONS: [(&str, &str, &str); 7] = [
    (
        "AliquotDriverMissing",
        "driver-loaded",
        "load the NVIDIA driver on the node, or correct devicePlugin.nvidiaDriverRoot or nvmlLibrary; the agent tries again every 2 s",
    ),
    (
        "AliquotRuntimeIncomplete",
        "container-runtime",
        "docs/guides/container-runtime.md explains each reason",
    ),
    (
        "AliquotGpuSick",
        "gpu-health",
        "docs/guides/sick-gpus.md explains each reason",
    ),
    (
        "AliquotCheckpointLost",
        "kubelet-checkpoint",
        "restart the named pods when convenient; until then their shares stay allocated",
    ),
    (
        "AliquotResourceTaken",
        "other-plugin",
        "docs/migrating-from-nvidia.md explains how to disable the other plugin",
    ),
    (
        "AliquotComputeUncorrected",
        "compute-correction",
        "docs/guides/monitor.md explains what then limits compute",
    ),
    (
        "AliquotHousekeepingFailed",
        "housekeeping",
        "repair what each error names; the agent tries again every 10 s",
    ),
];

/// The findings of every node with GPUs, or of the one that is named.
pub fn checks(facts: &ClusterFacts, asked: Option<&str>) -> Vec<Finding> {
    let about = About(asked.unwrap_or("cluster").to_owned());
    let nodes = match &facts.nodes {
        Ok(nodes) => nodes,
        Err(why) => return vec![about.unknown("nodes", why)],
    };
    let pods = facts.pods.as_deref().unwrap_or_default();
    let agent_is_on = |node: &Node| {
        let mut agents = pods.iter().filter(|pod| is_ours(pod, "device-plugin"));
        agents.any(|pod| pod::node(pod).is_some_and(|on| on.as_str() == node_name(node)))
    };
    let concerned: Vec<&Node> = nodes
        .iter()
        .filter(|node| asked.is_some() || has_gpus(node) || agent_is_on(node))
        .collect();
    if concerned.is_empty() {
        return vec![about.warning(
            "nodes",
            "no node has an inventory or GPUs in its capacity",
            "give the nodes with GPUs the label of devicePlugin.nvidiaNodeSelector: kubectl label node NODE gpu=on",
        )];
    }
    concerned
        .into_iter()
        .flat_map(|node| node_checks(facts, node, pods))
        .collect()
}

fn node_name(node: &Node) -> &str {
    node.metadata.name.as_deref().unwrap_or_default()
}

fn annotation<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    node.metadata
        .annotations
        .as_ref()?
        .get(key)
        .map(String::as_str)
}

/// The amounts in the node's capacity, by resource.
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

fn node_checks(facts: &ClusterFacts, node: &Node, pods: &[Pod]) -> Vec<Finding> {
    let about = About(node_name(node).to_owned());
    let here = |pod: &&Pod| pod::node(pod).is_some_and(|on| on.as_str() == node_name(node));
    let pods: Vec<&Pod> = pods
        .iter()
        .filter(here)
        .filter(|pod| !pod::is_finished(pod))
        .collect();
    let mut found = vec![agent(facts, node, &pods, &about)];
    let inventory = match annotation(node, INVENTORY).map(Inventory::decode) {
        None => {
            found.push(about.problem(
                "inventory",
                "the node has no inventory annotation: the scheduler places no share on it",
                "check that the node has the label of devicePlugin.nvidiaNodeSelector, and read the log of its agent pod",
            ));
            found.extend(conditions(node, &about));
            found.extend(other_plugins(&pods, &about));
            return found;
        }
        Some(Err(error)) => {
            let what = format!("annotation {INVENTORY} cannot be read: {error}");
            found.push(about.problem("inventory", what, "run the same release of all components"));
            return found;
        }
        Some(Ok(inventory)) => inventory,
    };
    found.push(driver(&inventory, &about));
    found.extend(replicas(node, &inventory, &pods, &about));
    found.extend(conditions(node, &about));
    found.extend(runtime_class::on_node(facts, node, &about));
    found.push(profile(node, &about));
    found.push(allocations(facts, node, &about));
    found.extend(other_plugins(&pods, &about));
    found.extend(mps_supervisor(&pods, &about));
    found.extend(ended_shares(&pods, &about));
    if annotation(node, hami::REGISTER).is_some() {
        found.push(about.problem(
            "hami",
            "the node still has HAMi's registration annotations: HAMi's scheduler places pods on it, too",
            "kubectl annotate node NODE hami.io/node-nvidia-register- hami.io/node-handshake-, then restart HAMi's scheduler",
        ));
    }
    found.extend(accounts(facts, node, &about));
    found
}

/// The agent pod is ready, answers, and is registered with the kubelet.
fn agent(facts: &ClusterFacts, node: &Node, pods: &[&Pod], about: &About) -> Finding {
    let check = "agent";
    if let Err(why) = &facts.pods {
        return about.unknown(check, why);
    }
    let node: NodeName = node_name(node).into();
    let here = pods.iter().find(|pod| is_ours(pod, "device-plugin"));
    let answer = facts.agents.get(&node).map(|agent| &agent.ready);
    match (here, answer) {
        (Some(pod), _) if !is_ready(pod) => {
            let answered = answer.and_then(|ready| ready.as_ref().err());
            let why = unready(pod).or_else(|| answered.cloned());
            let text = format!("pod {} is not ready: {}", name(pod), why.unwrap_or_default());
            about.problem(
                check,
                text,
                "run kubectl describe on the pod and read the log of the named container; devicePlugin.kubeletDir must be the kubelet's directory",
            )
        }
        (_, Some(Ok(()))) => about.ok(check, "the agent is registered with the kubelet and has published its inventory"),
        (None, None) => about.problem(
            check,
            "no agent pod runs on this node: running pods continue, new GPU pods do not start",
            "check that the node has the label of devicePlugin.nvidiaNodeSelector, and kubectl get pods -o wide in the namespace of Aliquot",
        ),
        (_, Some(Err(why))) => about.unknown(check, why),
        (Some(pod), None) => about.ok(check, format!("pod {} is ready", name(pod))),
    }
}

/// The pod with the MPS daemons has the agent's image: an upgrade does not replace it.
fn mps_supervisor(pods: &[&Pod], about: &About) -> Option<Finding> {
    let check = "mps-supervisor";
    let with_image = |part: &str| {
        let pod: &Pod = pods.iter().find(|pod| is_ours(pod, part))?;
        Some((pod, containers(pod).next()?.image.as_deref()?))
    };
    let (mps, old) = with_image("mps")?;
    let (_, new) = with_image("device-plugin")?;
    let (pod, namespace) = (name(mps), pod::namespace(mps));
    if old == new {
        return Some(about.ok(check, format!("pod {pod} has the agent's image")));
    }
    Some(about.warning(
        check,
        format!("pod {pod} runs the MPS daemons with image {old}, and the agent has {new}: an upgrade leaves this pod as it is, because its end ends every MPS client on the node"),
        &format!("kubectl delete pod {pod} -n {namespace} when no MPS client runs on the node: kubectl aliquot top pods lists them"),
    ))
}

/// Running pods whose init container has had a share: a restart of the kubelet ends them while the
/// agent does not run (kubernetes#138446).
fn ended_shares(pods: &[&Pod], about: &About) -> Option<Finding> {
    let at_risk = pods.iter().filter(|pod| has_ended_share(pod));
    let at_risk: Vec<String> = at_risk
        .map(|pod| format!("{}/{}", pod::namespace(pod), name(pod)))
        .collect();
    let first = at_risk.first()?;
    Some(about.warning(
        "ended-shares",
        format!(
            "an init container with a share has ended in {}, such as {first}: the kubelet ends the pod if it is restarted while the agent does not run",
            counted(at_risk.len(), "running pod", "running pods")
        ),
        "restart the kubelet of this node only while its agent is ready, and not during helm upgrade; docs/guides/nodes.md",
    ))
}

fn has_ended_share(pod: &Pod) -> bool {
    let text = pod::annotation(pod, ALLOCATION);
    let Some(Ok(allocation)) = text.map(Allocation::decode) else {
        return false;
    };
    let statuses = pod.status.iter();
    let mut statuses = statuses.flat_map(|status| status.init_container_statuses.iter().flatten());
    statuses.any(|status| {
        let state = status.state.as_ref();
        allocation.init.contains_key(&status.name)
            && state.is_some_and(|state| state.terminated.is_some())
    })
}

fn driver(inventory: &Inventory, about: &About) -> Finding {
    let (check, count) = ("driver", inventory.gpus.len());
    if inventory.driver.is_empty() {
        return about.unknown(check, "the inventory names no driver version");
    }
    if count == 0 {
        let what = format!("driver {} reports no GPU", inventory.driver);
        return about.problem(check, what, "run nvidia-smi -L on the node");
    }
    about.ok(
        check,
        format!(
            "driver {}, {}",
            inventory.driver,
            counted(count, "allocatable device", "allocatable devices")
        ),
    )
}

/// The GPUs of which pods have shares, and that the node has no longer.
fn vanished(inventory: &Inventory, pods: &[&Pod]) -> Vec<String> {
    let mut found = BTreeSet::new();
    for pod in pods {
        let text = pod::annotation(pod, ALLOCATION);
        let Some(Ok(allocation)) = text.map(Allocation::decode) else {
            continue;
        };
        let grants = allocation.all().flat_map(|(_, grants)| grants);
        let gone = grants.filter(|grant| inventory.gpu(&grant.gpu).is_none());
        found.extend(gone.map(|grant| grant.gpu.to_string()));
    }
    found.into_iter().collect()
}

/// The kubelet counts the replicas that the inventory has.
fn replicas(node: &Node, inventory: &Inventory, pods: &[&Pod], about: &About) -> Vec<Finding> {
    let check = "kubelet-seats";
    let mut offered: BTreeMap<&str, u64> = BTreeMap::new();
    // The counts differ with dynamic MIG, and while a GPU changes its mode.
    let steady = |gpu: &&Gpu| gpu.mode != Mode::Mig;
    for gpu in inventory.gpus.iter().filter(steady) {
        *offered.entry(&gpu.resource).or_default() += u64::from(gpu.replicas);
    }
    let changing = |name: &str| {
        let mut of = inventory.gpus.iter().filter(|gpu| gpu.resource == name);
        of.any(|gpu| gpu.cordon.is_some())
    };
    let capacity = capacity(node);
    let vanished = vanished(inventory, pods);
    let mut found = Vec::new();
    for (resource, replicas) in offered {
        let count = capacity.get(resource).copied().unwrap_or(0);
        let what =
            format!("the node's capacity has {count} {resource}, the inventory has {replicas}");
        found.push(match count {
            _ if changing(resource) => about.ok(check, format!("{resource}: not compared while a GPU changes its mode")),
            0 if replicas > 0 => about.problem(
                check,
                what,
                "the agent is not registered with this kubelet: read the agent's log, and check devicePlugin.kubeletDir",
            ),
            count if count == replicas => about.ok(check, format!("{replicas} {resource}")),
            count if count > replicas && !vanished.is_empty() => about.warning(
                check,
                format!("{what}: pods have shares of {}, which is not on this node any more", vanished.join(", ")),
                "delete these pods, which keep their replicas until they end; docs/guides/sick-gpus.md says how a GPU comes back",
            ),
            _ => about.warning(
                check,
                what,
                "another device plugin may have registered the same resource later: see check other-plugin; pods of an earlier profile also keep their replicas until they end",
            ),
        });
    }
    found
}

fn condition<'a>(node: &'a Node, kind: &str) -> Option<&'a NodeCondition> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|one| one.type_ == kind)
}

/// The conditions that the agent set.
fn conditions(node: &Node, about: &About) -> Vec<Finding> {
    let finding = |(kind, check, todo): (&str, &'static str, &str)| {
        let Some(found) = condition(node, kind).filter(|found| found.status == "True") else {
            return about.ok(check, "the agent reports no problem");
        };
        let reason = found.reason.as_deref().unwrap_or_default();
        let text = format!("{reason}: {}", found.message.as_deref().unwrap_or_default());
        match reason {
            "CdiUnknown" => about.unknown(check, text),
            // Each instance has multiprocessors of its own.
            "PartitionedGpus" => about.ok(check, text),
            "CdiOff" | "DrainNeeded" | "DriverMissing" | "HookNotExecutable"
            | "OtherDevicePlugin" | "ResetNeeded" => about.problem(check, text, todo),
            _ => about.warning(check, text, todo),
        }
    };
    CONDITIONS.into_iter().map(finding).collect()
}

/// The profile is applied.
fn profile(node: &Node, about: &About) -> Finding {
    let check = "profile";
    match condition(node, "AliquotProfile") {
        None => about.ok(check, "no profiles are configured"),
        Some(found) if found.status == "True" => {
            about.ok(check, "the profile is applied on every GPU")
        }
        Some(found) => {
            let reason = found.reason.as_deref().unwrap_or_default();
            let text = format!("{reason}: {}", found.message.as_deref().unwrap_or_default());
            about.warning(
                check,
                text,
                "docs/guides/gpu-profiles.md explains each reason",
            )
        }
    }
}

/// The allocations of the node's pods can be read.
fn allocations(facts: &ClusterFacts, node: &Node, about: &About) -> Finding {
    let check = "allocations";
    let pods = match &facts.pods {
        Ok(pods) => pods,
        Err(why) => return about.unknown(check, why),
    };
    let ledger = snapshot::ledger(std::slice::from_ref(node), pods, &snapshot::settings(pods));
    let unreadable = snapshot::unreadable(&ledger, &node_name(node).into(), pods);
    if unreadable.is_empty() {
        return about.ok(check, "the allocations of all pods can be read");
    }
    about.problem(
        check,
        format!(
            "the allocation of {} cannot be read: the node counts as full",
            unreadable.join(", ")
        ),
        "kubectl delete pod POD -n NAMESPACE: its annotation is not what the scheduler wrote, and set admissionPolicies.enabled=true if it is false",
    )
}

/// The differences that the agent counted between its allocations and the kubelet's.
fn accounts(facts: &ClusterFacts, node: &Node, about: &About) -> Vec<Finding> {
    let check = "node-accounts";
    let node: NodeName = node_name(node).into();
    let page = match facts.agents.get(&node).map(|agent| &agent.metrics) {
        None => {
            return vec![about.unknown(
                check,
                "the agent was not asked, because it has no running pod",
            )];
        }
        Some(Err(why)) => return vec![about.unknown(check, why)],
        Some(Ok(page)) => page,
    };
    let counted = |name: &str| metrics::sum(page, &format!("aliquot_device_plugin_{name}"));
    let mut found = Vec::new();
    for (name, what) in [
        (
            "audit_differences_total",
            "containers that see another MIG instance than the one in their allocation",
        ),
        (
            "damaged_shares",
            "accepted allocations that cannot be read back and count by their pods' annotations",
        ),
        (
            "checkpoint_lost",
            "running containers with an allocation that the kubelet's checkpoint does not have",
        ),
    ] {
        match counted(name) {
            None => found.push(about.unknown(
                check,
                format!("the agent has no metric aliquot_device_plugin_{name}"),
            )),
            Some(0.0) => {}
            Some(count) => found.push(about.warning(
                check,
                format!("{count} {what}"),
                "read the agent's log, which names them",
            )),
        }
    }
    if found.is_empty() {
        found.push(about.ok(check, "the agent's allocations match the kubelet's"));
    }
    found
}

#[cfg(test)]
#[path = "node_tests.rs"]
mod tests;
