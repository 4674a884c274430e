//! Checks of one node: its agent, and what the agent reports in conditions.

use aliquot_core::allocation::ALLOCATION;
use aliquot_core::inventory::{INVENTORY, Inventory};
use aliquot_core::{Allocation, NodeName, hami};
use aliquot_k8s::pod;
use k8s_openapi::api::core::v1::{Node, NodeCondition, Pod};

use super::facts::ClusterFacts;
use super::finding::{About, Finding};
use crate::components::{containers, is_ours, is_ready, name, node_name, offered, unready};
use crate::table::counted;

/// The condition that is `False` where something is wrong: a profile is not applied.
const PROFILE: &str = "AliquotProfile";
/// Conditions that the agent sets on its node: type, check, what to do.
const CONDITIONS: [(&str, &str, &str); 9] = [
    (
        "AliquotDriverMissing",
        "driver-loaded",
        "load the NVIDIA driver on the node, or correct devicePlugin.nvidiaDriverRoot or ALIQUOT_NVML_LIBRARY; the agent tries again every 2 s",
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
        "AliquotAllocationUnreadable",
        "allocations",
        "kubectl delete pod POD -n NAMESPACE: its annotation is not what the scheduler wrote, and set admissionPolicies.enabled=true if it is false",
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
    (
        PROFILE,
        "profile",
        "docs/guides/gpu-profiles.md explains each reason",
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

fn annotation<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    let annotations = node.metadata.annotations.as_ref()?;
    annotations.get(key).map(String::as_str)
}

fn has_gpus(node: &Node) -> bool {
    annotation(node, INVENTORY).is_some() || offered(node).next().is_some()
}

fn node_checks(facts: &ClusterFacts, node: &Node, pods: &[Pod]) -> Vec<Finding> {
    let about = About(node_name(node).to_owned());
    let here = |pod: &&Pod| pod::node(pod).is_some_and(|on| on.as_str() == node_name(node));
    let pods: Vec<&Pod> = pods
        .iter()
        .filter(here)
        .filter(|pod| !pod::is_finished(pod))
        .collect();
    let mut found = vec![agent(facts, node, &pods, &about), inventory(node, &about)];
    found.extend(monitor(&pods, &about));
    found.extend(unmanaged(node, &about));
    found.extend(conditions(node, &about));
    found.extend(mps_supervisor(&pods, &about));
    found.extend(ended_shares(&pods, &about));
    if annotation(node, hami::REGISTER).is_some() {
        found.push(about.problem(
            "hami",
            "the node still has HAMi's registration annotations: HAMi's scheduler places pods on it, too",
            "kubectl annotate node NODE hami.io/node-nvidia-register- hami.io/node-handshake-, then restart HAMi's scheduler",
        ));
    }
    found
}

/// The agent pod is ready: it is registered with the kubelet and has published its inventory.
fn agent(facts: &ClusterFacts, node: &Node, pods: &[&Pod], about: &About) -> Finding {
    let check = "agent";
    if let Err(why) = &facts.pods {
        return about.unknown(check, why);
    }
    let Some(pod) = pods.iter().find(|pod| is_ours(pod, "device-plugin")) else {
        return about.problem(
            check,
            "no agent pod runs on this node: running pods continue, new GPU pods do not start",
            "check that the node has the label of devicePlugin.nvidiaNodeSelector, and kubectl get pods -o wide in the namespace of Aliquot",
        );
    };
    if is_ready(pod) {
        return about.ok(check, format!("pod {} is ready", name(pod)));
    }
    let answer = facts.unready_agents.get(&NodeName::from(node_name(node)));
    let why: Vec<String> = unready(pod).into_iter().chain(answer.cloned()).collect();
    about.problem(
        check,
        format!("pod {} is not ready: {}", name(pod), why.join("; ")),
        "run kubectl describe on the pod and read the log of the named container; devicePlugin.kubeletDir must be the kubelet's directory",
    )
}

/// The monitor's pod is ready, where there is one.
fn monitor(pods: &[&Pod], about: &About) -> Option<Finding> {
    let check = "monitor";
    let pod: &Pod = pods.iter().find(|pod| is_ours(pod, "monitor"))?;
    if is_ready(pod) {
        return Some(about.ok(check, format!("pod {} is ready", name(pod))));
    }
    let why = unready(pod).unwrap_or_default();
    Some(about.problem(
        check,
        format!("pod {} is not ready: {why}", name(pod)),
        "read its log: until it is ready, nobody measures what the node's pods use, and what gets around the library is not seen",
    ))
}

/// The scheduler can read which GPUs the node has.
fn inventory(node: &Node, about: &About) -> Finding {
    let check = "inventory";
    match annotation(node, INVENTORY).map(Inventory::decode) {
        None => about.problem(
            check,
            "the node has no inventory annotation: the scheduler places no share on it",
            "check that the node has the label of devicePlugin.nvidiaNodeSelector, and read the log of its agent pod",
        ),
        Some(Err(error)) => about.problem(
            check,
            format!("annotation {INVENTORY} cannot be read: {error}"),
            "run the same release of all components",
        ),
        Some(Ok(inventory)) if inventory.gpus.is_empty() => about.problem(
            check,
            format!("driver {} reports no GPU", inventory.driver),
            "run nvidia-smi -L on the node",
        ),
        Some(Ok(inventory)) => {
            let devices = counted(inventory.gpus.len(), "device", "devices");
            about.ok(check, format!("driver {}, {devices}", inventory.driver))
        }
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

/// No process outside every share holds memory of a GPU.
fn unmanaged(node: &Node, about: &About) -> Option<Finding> {
    let check = "unmanaged-memory";
    let inventory = Inventory::decode(annotation(node, INVENTORY)?).ok()?;
    let held = inventory.unmanaged.iter();
    let held: Vec<String> = held
        .map(|(gpu, memory)| format!("{memory} of {gpu}"))
        .collect();
    if held.is_empty() {
        return Some(about.ok(check, "no process outside every share is reported"));
    }
    let held = held.join(", ");
    Some(about.warning(
        check,
        format!("processes outside every share hold {held}: no pod is promised that memory, except where host memory backs it"),
        "end them: the events GpuProcessUnmanaged on the node and its pods, and the metric aliquot_gpu_unmanaged_memory_bytes, say what they are; monitor.withholdUnmanaged=false promises the memory all the same",
    ))
}

fn condition<'a>(node: &'a Node, kind: &str) -> Option<&'a NodeCondition> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|one| one.type_ == kind)
}

fn conditions(node: &Node, about: &About) -> Vec<Finding> {
    let finding = |(kind, check, todo): (&str, &'static str, &str)| {
        let bad = if kind == PROFILE { "False" } else { "True" };
        let Some(found) = condition(node, kind).filter(|found| found.status == bad) else {
            return about.ok(check, "the agent reports no problem");
        };
        let reason = found.reason.as_deref().unwrap_or_default();
        let text = format!("{reason}: {}", found.message.as_deref().unwrap_or_default());
        match reason {
            "CdiUnknown" => about.unknown(check, text),
            // Each instance has multiprocessors of its own.
            "PartitionedGpus" => about.ok(check, text),
            "AllocationUnreadable"
            | "CdiOff"
            | "DrainNeeded"
            | "DriverMissing"
            | "HookNotExecutable"
            | "OtherDevicePlugin"
            | "ResetNeeded" => about.problem(check, text, todo),
            _ => about.warning(check, text, todo),
        }
    };
    CONDITIONS.into_iter().map(finding).collect()
}

#[cfg(test)]
#[path = "node_tests.rs"]
mod tests;
