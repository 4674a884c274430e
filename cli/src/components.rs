//! What the commands read from pods and nodes: of which component of Aliquot a pod is, whether it is ready, its
//! flags; what a node offers.

use std::collections::BTreeMap;

use aliquot_core::request;
use aliquot_k8s::pod;
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Node, Pod, PodCondition};

/// The label that all pods of Aliquot carry.
pub const PART: &str = "app.kubernetes.io/part-of";
/// The label that names the component.
pub const COMPONENT: &str = "app.kubernetes.io/component";

/// Labels that exempt a pod or a namespace from admission, with the value `ignore`.
pub const IGNORE_LABELS: [&str; 2] = ["hami.io/webhook", "aliquot.dev/webhook"];

/// Whether the pod is of this component of Aliquot.
pub fn is_ours(pod: &Pod, part: &str) -> bool {
    let label = |key| pod.metadata.labels.as_ref()?.get(key).map(String::as_str);
    label(PART) == Some("aliquot") && label(COMPONENT) == Some(part)
}

/// Takes Aliquot's label from the pods of other namespaces, where whoever may create a pod may write it. Without a
/// pod of Aliquot in this namespace, Aliquot may be in another one.
pub fn distrust_others(pods: &mut [Pod], namespace: &str) {
    let is_there = |pod: &Pod| pod.metadata.namespace.as_deref() == Some(namespace);
    let is_part = |pod: &Pod| {
        let labels = pod.metadata.labels.as_ref();
        labels.is_some_and(|labels| labels.get(PART).is_some_and(|of| of == "aliquot"))
    };
    if !pods.iter().any(|pod| is_there(pod) && is_part(pod)) {
        return;
    }
    for pod in pods.iter_mut().filter(|pod| !is_there(pod)) {
        if let Some(labels) = &mut pod.metadata.labels {
            labels.remove(PART);
        }
    }
}

/// The pods of a component that have not ended.
pub fn running_pods<'a>(pods: &'a [Pod], part: &'a str) -> impl Iterator<Item = &'a Pod> {
    pods.iter()
        .filter(move |pod| is_ours(pod, part) && !pod::is_finished(pod))
}

/// The pods on each node, by its name: a search among all pods for each node takes minutes with thousands of nodes.
pub fn by_node<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> BTreeMap<&'a str, Vec<&'a Pod>> {
    let mut by_node: BTreeMap<&str, Vec<&Pod>> = BTreeMap::new();
    for pod in pods {
        let spec = pod.spec.as_ref();
        if let Some(node) = spec.and_then(|spec| spec.node_name.as_deref()) {
            by_node.entry(node).or_default().push(pod);
        }
    }
    by_node
}

/// Whether the pod's condition Ready is True.
pub fn is_ready(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_deref());
    let is_true = |one: &PodCondition| one.type_ == "Ready" && one.status == "True";
    conditions.unwrap_or_default().iter().any(is_true)
}

/// Its containers that are not ready, with the reason in their status; why it has no node, where it has none.
pub fn unready(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let Some(statuses) = &status.container_statuses else {
        let mut conditions = status.conditions.iter().flatten();
        let unplaced = conditions.find(|one| one.type_ == "PodScheduled" && one.status == "False");
        return unplaced?.message.clone();
    };
    let unready: Vec<String> = statuses
        .iter()
        .filter(|container| !container.ready)
        .map(with_reason)
        .collect();
    (!unready.is_empty()).then(|| unready.join(", "))
}

fn with_reason(container: &ContainerStatus) -> String {
    let state = container.state.as_ref();
    let waiting = state.and_then(|state| state.waiting.as_ref());
    let ended = state.and_then(|state| state.terminated.as_ref());
    let waiting = waiting.map(|waiting| [&waiting.reason, &waiting.message]);
    let ended = ended.map(|ended| [&ended.reason, &ended.message]);
    let texts = waiting.into_iter().chain(ended).flatten();
    let texts: Vec<&str> = texts.filter_map(Option::as_deref).collect();
    match texts[..] {
        [] => container.name.clone(),
        _ => format!("{} ({})", container.name, texts.join(": ")),
    }
}

pub fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

pub fn node_name(node: &Node) -> &str {
    node.metadata.name.as_deref().unwrap_or_default()
}

/// The GPU resources of NVIDIA's that the node offers to pods now, such as `8 nvidia.com/gpu`.
pub fn offered(node: &Node) -> impl Iterator<Item = String> {
    let status = node.status.as_ref();
    let allocatable = status.and_then(|status| status.allocatable.as_ref());
    let amounts = allocatable.into_iter().flatten();
    amounts
        .filter(|(name, amount)| is_gpu(name) && amount.0 != "0")
        .map(|(name, amount)| format!("{} {name}", amount.0))
}

/// Whether a resource is one of GPUs with a name of NVIDIA's.
pub fn is_gpu(resource: &str) -> bool {
    resource.starts_with("nvidia.com/") && request::is_gpu(resource)
}

pub fn containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    pod.spec.iter().flat_map(|spec| &spec.containers)
}

/// The value of `--flag=value` or `--flag value` in the commands and arguments of a pod's containers.
pub fn flag<'a>(pod: &'a Pod, flag: &str) -> Option<&'a str> {
    let lists = containers(pod).flat_map(|one| [&one.command, &one.args]);
    let mut words = lists.flatten().flatten();
    while let Some(word) = words.next() {
        let Some(rest) = word.strip_prefix(flag) else {
            continue;
        };
        match rest.strip_prefix('=') {
            Some(value) => return Some(value),
            None if rest.is_empty() => return words.next().map(String::as_str),
            None => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(args: &[&str]) -> Pod {
        let container = json!({"name": "c", "command": ["x"], "args": args});
        serde_json::from_value(json!({"spec": {"containers": [container]}})).unwrap()
    }

    #[test]
    fn tenants_pod_passes_for_no_part_of_aliquot() {
        let pod = |namespace: &str| -> Pod {
            let labels = json!({PART: "aliquot", COMPONENT: "scheduler"});
            let metadata = json!({"namespace": namespace, "labels": labels});
            serde_json::from_value(json!({ "metadata": metadata })).unwrap()
        };
        let check = |namespace: &str, expected: [bool; 2]| {
            let mut pods = [pod("a-tenant"), pod("aliquot-system")];
            distrust_others(&mut pods, namespace);
            let found = pods.each_ref().map(|pod| is_ours(pod, "scheduler"));
            assert_eq!(found, expected, "{namespace}");
        };
        check("aliquot-system", [false, true]);
        check("elsewhere", [true, true]);
    }

    #[test]
    fn reads_flag_in_both_forms() {
        let check = |args: &[&str], expected: Option<&str>| {
            assert_eq!(flag(&pod(args), "--resource-mem"), expected, "{args:?}");
        };
        check(&["--resource-mem=a/b"], Some("a/b"));
        check(&["--resource-mem", "a/b"], Some("a/b"));
        check(&["--resource-mem-percentage=a/b"], None);
        check(&[], None);
    }
}
