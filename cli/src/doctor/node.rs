//! Checks of one node: its agent, and what the agent reports in conditions.

use aliquot_core::allocation::ALLOCATION;
use aliquot_core::inventory::{INVENTORY, Inventory};
use aliquot_core::{Allocation, NodeName, hami};
use aliquot_k8s::pod;
use k8s_openapi::api::core::v1::{Node, NodeCondition, Pod};

use super::facts::ClusterFacts;
use super::finding::{About, Checked, Finding, note, ok, problem, warning};
use crate::components::{
    by_node, containers, is_ours, is_ready, name, node_name, offered, unready,
};
use crate::table::{counted, some};

/// How the types of the agent's conditions begin.
const OURS: &str = "Aliquot";
/// The condition that is `False` where something is wrong: a profile is not applied.
const PROFILE: &str = "AliquotProfile";
/// Reasons for which pods do not run, or are in danger.
const PROBLEMS: [&str; 7] = [
    "AllocationUnreadable",
    "CdiOff",
    "DrainNeeded",
    "DriverMissing",
    "HookNotExecutable",
    "OtherDevicePlugin",
    "ResetNeeded",
];

/// The findings of every node of Aliquot's, or of the one that is named.
pub fn checks(facts: &ClusterFacts, asked: Option<&str>) -> Vec<Finding> {
    let about = About(asked.unwrap_or("cluster").to_owned());
    let nodes = match &facts.nodes {
        Ok(nodes) => nodes,
        Err(why) => return vec![about.finding("nodes", Err(why.clone()))],
    };
    let by_node = by_node(facts.pods.iter().flatten());
    let on = |node: &Node| {
        let pods = by_node.get(node_name(node));
        pods.map(Vec::as_slice).unwrap_or_default()
    };
    let is_of_aliquot = |node: &Node| {
        annotation(node, INVENTORY).is_some()
            || on(node).iter().any(|pod| is_ours(pod, "device-plugin"))
    };
    // Where pods cannot be read, an agent may be on a node that has no inventory yet.
    let is_unknown = asked.is_some() || facts.pods.is_err();
    let (concerned, others): (Vec<&Node>, Vec<&Node>) = nodes
        .iter()
        .filter(|node| asked.is_some() || is_of_aliquot(node) || offered(node).next().is_some())
        .partition(|node| is_unknown || is_of_aliquot(node));
    let mut found = Vec::new();
    if concerned.is_empty() {
        let none = warning(
            "no node has an inventory or an agent of Aliquot's",
            format!(
                "give the nodes with GPUs the label of devicePlugin.nvidiaNodeSelector: kubectl label node NODE gpu=on; where they have it, kubectl describe daemonset aliquot-device-plugin -n {} says why no agent starts, such as Pod Security",
                facts.namespace
            ),
        );
        found.push(about.finding("nodes", none));
    }
    if !others.is_empty() {
        let names = some(others.iter().map(|node| node_name(node)));
        let theirs = note(
            format!(
                "another device plugin serves the GPUs of {names}: pods with a share do not go there"
            ),
            "docs/migrating-from-nvidia.md moves a node",
        );
        found.push(about.finding("nodes", theirs));
    }
    let has_monitors = by_node
        .values()
        .flatten()
        .any(|pod| is_ours(pod, "monitor"));
    let of_nodes = concerned.into_iter();
    found.extend(of_nodes.flat_map(|node| node_checks(facts, node, on(node), has_monitors)));
    found
}

fn annotation<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    let annotations = node.metadata.annotations.as_ref()?;
    annotations.get(key).map(String::as_str)
}

fn node_checks(
    facts: &ClusterFacts,
    node: &Node,
    pods: &[&Pod],
    has_monitors: bool,
) -> Vec<Finding> {
    let about = About(node_name(node).to_owned());
    let pods = pods.iter().copied();
    let pods: Vec<&Pod> = pods.filter(|pod| !pod::is_finished(pod)).collect();
    let mut found = about.each([
        ("agent", agent(facts, node, &pods)),
        ("inventory", inventory(node)),
    ]);
    let conditions = conditions(node).into_iter();
    found.extend(conditions.map(|checked| about.finding("conditions", checked)));
    // These have no result on a node without what they check.
    let optional = [
        ("monitor", monitor(&pods, has_monitors)),
        ("unmanaged-memory", unmanaged(node)),
        ("mps-supervisor", mps_supervisor(&pods)),
        ("ended-shares", ended_shares(&pods)),
        ("hami", registered_by_hami(node)),
    ];
    let others = optional.into_iter();
    found.extend(others.filter_map(|(check, checked)| Some(about.finding(check, checked?))));
    found
}

/// The agent pod is ready: it is registered with the kubelet and has published its inventory.
fn agent(facts: &ClusterFacts, node: &Node, pods: &[&Pod]) -> Checked {
    facts.pods.as_ref()?;
    let Some(pod) = pods.iter().find(|pod| is_ours(pod, "device-plugin")) else {
        return problem(
            "no agent pod runs on this node: running pods continue, new GPU pods do not start",
            "check that the node has the label of devicePlugin.nvidiaNodeSelector, and kubectl describe daemonset aliquot-device-plugin in the namespace of Aliquot",
        );
    };
    if is_ready(pod) {
        return ok(format!("pod {} is ready", name(pod)));
    }
    let answer = facts.unready_agents.get(&NodeName::from(node_name(node)));
    let why: Vec<String> = unready(pod).into_iter().chain(answer.cloned()).collect();
    problem(
        format!("pod {} is not ready: {}", name(pod), why.join("; ")),
        "run kubectl describe on the pod and read the log of the named container; devicePlugin.kubeletDir must be the kubelet's directory",
    )
}

/// The monitor's pod is ready. The chart runs one beside each agent, or none at all.
fn monitor(pods: &[&Pod], has_monitors: bool) -> Option<Checked> {
    let Some(pod) = pods.iter().find(|pod| is_ours(pod, "monitor")) else {
        let is_missing = has_monitors && pods.iter().any(|pod| is_ours(pod, "device-plugin"));
        return is_missing.then(|| {
            problem(
                "no monitor pod runs on this node: nobody measures what its pods use, and what gets around the library is not seen",
                "kubectl describe daemonset aliquot-monitor in the namespace of Aliquot",
            )
        });
    };
    if is_ready(pod) {
        return Some(ok(format!("pod {} is ready", name(pod))));
    }
    let why = unready(pod).unwrap_or_default();
    Some(problem(
        format!("pod {} is not ready: {why}", name(pod)),
        "read its log: until it is ready, nobody measures what the node's pods use, and what gets around the library is not seen",
    ))
}

/// The scheduler can read which GPUs the node has.
fn inventory(node: &Node) -> Checked {
    match annotation(node, INVENTORY).map(Inventory::decode) {
        None => problem(
            "the node has no inventory annotation: the scheduler places no share on it",
            "check that the node has the label of devicePlugin.nvidiaNodeSelector, and read the log of its agent pod",
        ),
        Some(Err(error)) => problem(
            format!("annotation {INVENTORY} cannot be read: {error}"),
            "run the same release of all components",
        ),
        Some(Ok(inventory)) if inventory.gpus.is_empty() => problem(
            format!("driver {} reports no GPU", inventory.driver),
            "run nvidia-smi -L on the node",
        ),
        Some(Ok(inventory)) => {
            let devices = counted(inventory.gpus.len(), "device", "devices");
            ok(format!("driver {}, {devices}", inventory.driver))
        }
    }
}

/// What the agent reports itself.
fn conditions(node: &Node) -> Vec<Checked> {
    let todo = "docs/guides/doctor.md has what helps with each condition";
    let status = node.status.iter();
    let all = status.flat_map(|status| status.conditions.iter().flatten());
    let is_bad = |one: &&NodeCondition| {
        let bad = if one.type_ == PROFILE {
            "False"
        } else {
            "True"
        };
        one.type_.starts_with(OURS) && one.status == bad
    };
    let verdict = |one: &NodeCondition| {
        let reason = one.reason.as_deref().unwrap_or_default();
        let message = one.message.as_deref().unwrap_or_default();
        let found = format!("{}, {reason}: {message}", one.type_);
        match reason {
            "CdiUnknown" => Err(found),
            // Not a problem: each instance has multiprocessors of its own.
            "PartitionedGpus" => ok(found),
            _ if PROBLEMS.contains(&reason) => problem(found, todo),
            _ => warning(found, todo),
        }
    };
    let mut found: Vec<Checked> = all.filter(is_bad).map(verdict).collect();
    if found.is_empty() {
        found.push(ok("the agent reports no problem"));
    }
    found
}

/// The pod with the MPS daemons has the agent's image: an upgrade does not replace it.
fn mps_supervisor(pods: &[&Pod]) -> Option<Checked> {
    let with_image = |part: &str| {
        let pod: &Pod = pods.iter().find(|pod| is_ours(pod, part))?;
        Some((pod, containers(pod).next()?.image.as_deref()?))
    };
    let (mps, old) = with_image("mps")?;
    let (_, new) = with_image("device-plugin")?;
    let (pod, namespace) = (name(mps), pod::namespace(mps));
    if old == new {
        return Some(ok(format!("pod {pod} has the agent's image")));
    }
    Some(warning(
        format!(
            "pod {pod} runs the MPS daemons with image {old}, and the agent has {new}: an upgrade leaves this pod as it is, because its end ends every MPS client on the node"
        ),
        format!(
            "kubectl delete pod {pod} -n {namespace} when no MPS client runs on the node: kubectl aliquot top pods -A -o wide counts them"
        ),
    ))
}

/// Running pods whose init container has had a share: a restart of the kubelet ends them while the
/// agent does not run (kubernetes#138446).
fn ended_shares(pods: &[&Pod]) -> Option<Checked> {
    let at_risk: Vec<String> = pods
        .iter()
        .filter(|pod| has_ended_share(pod))
        .map(|pod| format!("{}/{}", pod::namespace(pod), name(pod)))
        .collect();
    let first = at_risk.first()?;
    Some(warning(
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
    let status = pod.status.iter();
    let mut statuses = status.flat_map(|status| status.init_container_statuses.iter().flatten());
    statuses.any(|status| {
        let state = status.state.as_ref();
        allocation.init.contains_key(&status.name)
            && state.is_some_and(|state| state.terminated.is_some())
    })
}

/// No process outside every share holds memory of a GPU.
fn unmanaged(node: &Node) -> Option<Checked> {
    let inventory = Inventory::decode(annotation(node, INVENTORY)?).ok()?;
    let held: Vec<String> = inventory
        .unmanaged
        .iter()
        .map(|(gpu, memory)| format!("{memory} of {gpu}"))
        .collect();
    if held.is_empty() {
        return Some(ok("no process outside every share is reported"));
    }
    Some(warning(
        format!(
            "processes outside every share hold {}: no pod is promised that memory, except where host memory backs it",
            held.join(", ")
        ),
        "end them: the events GpuProcessUnmanaged on the node and its pods, and the metric aliquot_gpu_unmanaged_memory_bytes, say what they are; monitor.withholdUnmanaged=false promises the memory all the same",
    ))
}

/// HAMi's scheduler does not know the node.
fn registered_by_hami(node: &Node) -> Option<Checked> {
    annotation(node, hami::REGISTER)?;
    Some(problem(
        "the node still has HAMi's registration annotations: HAMi's scheduler places pods on it, too",
        "kubectl annotate node NODE hami.io/node-nvidia-register- hami.io/node-handshake-, then restart HAMi's scheduler",
    ))
}

#[cfg(test)]
#[path = "node_tests.rs"]
mod tests;
