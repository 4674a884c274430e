//! What the nodes and pods of a cluster say without its scheduler.

use std::collections::BTreeMap;

use aliquot_core::score::Policies;
use aliquot_core::usage::AllocatedUse;
use aliquot_core::{GpuPolicy, Ledger, NodeName, Policy};
use aliquot_k8s::flags::{FlagError, RequestFlags};
use aliquot_k8s::view::PodView;
use aliquot_k8s::{node, pod, replicas};
use clap::{CommandFactory as _, Parser};
use k8s_openapi::api::core::v1::{Container, Node, Pod};
use thiserror::Error;

use crate::components::{flag, is_ours, name, node_name};

/// The ledger from nodes and pods; pods that are being bound are missing.
pub fn ledger(nodes: &[Node], pods: &[Pod], settings: &pod::Settings) -> Ledger {
    let mut ledger = Ledger::default();
    for object in nodes {
        ledger.publish(&node_name(object).into(), Some(node::published(object)));
    }
    for object in pods.iter().filter(|pod| !pod::is_finished(pod)) {
        // Pods without a share count, too: they use CPU and memory.
        let view = PodView::from(object);
        if let Some(node) = view.node() {
            let share = pod::allocated(&view, settings);
            let allocated = share.map_or_else(AllocatedUse::nothing, |(_, used)| used);
            let requests = replicas::requests(&view, settings);
            ledger.confirm(&view.uid(), &view.namespace(), &node, allocated, requests);
        }
    }
    ledger
}

/// How the scheduler among these pods reads pods: the resources' names, its defaults and its own name; the flags'
/// defaults where no scheduler is there, or one of another release.
pub(crate) fn settings(pods: &[Pod]) -> pod::Settings {
    scheduler(pods).map_or_else(|_| pod::Settings::default(), |(settings, _)| settings)
}

/// The flags by which the scheduler reads pods and chooses nodes.
#[derive(Debug, Parser)]
#[command(no_binary_name = true)]
struct SchedulerFlags {
    #[command(flatten)]
    request: RequestFlags,
    #[arg(long, default_value = "fragmentation")]
    node_policy: Policy,
    #[arg(long, default_value = "fragmentation")]
    gpu_policy: GpuPolicy,
}

#[derive(Debug, Error)]
pub enum SchedulerFlagsError {
    #[error(
        "the flags of the scheduler's pod cannot be read; check that it is of the same release as this program: {0}"
    )]
    Parse(#[from] clap::Error),
    #[error("a flag of the scheduler's pod is invalid: {0}")]
    Name(#[from] FlagError),
}

/// How the scheduler among these pods reads pods, and by which policies it places them; the flags' defaults where
/// none is there.
pub(crate) fn scheduler(pods: &[Pod]) -> Result<(pod::Settings, Policies), SchedulerFlagsError> {
    let scheduler = pods.iter().find(|pod| is_ours(pod, "scheduler"));
    let command = SchedulerFlags::command();
    let given = command.get_arguments().filter_map(|arg| {
        let name = format!("--{}", arg.get_long()?);
        Some(format!("{name}={}", flag(scheduler?, &name)?))
    });
    let flags = SchedulerFlags::try_parse_from(given)?;
    let policies = Policies {
        node: flags.node_policy,
        gpu: flags.gpu_policy,
        ..Policies::default()
    };
    Ok((flags.request.settings()?, policies))
}

/// The pods whose unreadable allocation makes their node full, as `namespace/name`, by node.
pub(crate) fn unreadable(ledger: &Ledger, pods: &[Pod]) -> BTreeMap<NodeName, Vec<String>> {
    let entries = ledger.unreadable();
    let nodes: BTreeMap<_, _> = entries.map(|(uid, entry)| (uid, &entry.node)).collect();
    let mut found: BTreeMap<NodeName, Vec<String>> = BTreeMap::new();
    for one in pods {
        if let Some(&node) = nodes.get(&pod::uid(one)) {
            let full_name = format!("{}/{}", pod::namespace(one), name(one));
            found.entry(node.clone()).or_default().push(full_name);
        }
    }
    found
}

/// The variable by which a container asks for no limits.
const DISABLE_CONTROL: &str = "CUDA_DISABLE_CONTROL";

/// The running containers with a share and without limits, as `namespace/pod container`: they ask for
/// it by a variable, and a flag of the agents allows it in their namespace.
pub(crate) fn without_control(pods: &[Pod]) -> Vec<String> {
    let agent = pods.iter().find(|pod| is_ours(pod, "device-plugin"));
    let list = agent.and_then(|agent| flag(agent, "--may-disable-control"));
    let named: Vec<&str> = list.unwrap_or_default().split(',').collect();
    let settings = settings(pods);
    let asks = |container: &Container| {
        let mut env = container.env.iter().flatten().rev();
        let variable = env.find(|one| one.name == DISABLE_CONTROL);
        let value = variable.and_then(|one| one.value.as_deref());
        matches!(value, Some("1" | "t" | "T" | "true" | "TRUE" | "True"))
    };
    let mut found = Vec::new();
    for object in pods.iter().filter(|pod| !pod::is_finished(pod)) {
        let namespace = pod::namespace(object);
        let may = named.contains(&"*") || named.contains(&namespace.as_str());
        if !may || pod::allocated(&PodView::from(object), &settings).is_none() {
            continue;
        }
        for (container, _) in pod::containers(object).filter(|(container, _)| asks(container)) {
            found.push(format!("{namespace}/{} {}", name(object), container.name));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use aliquot_core::Mib;
    use aliquot_core::request::Resource;
    use serde_json::json;

    use super::*;
    use crate::components::{COMPONENT, PART};

    #[test]
    fn reads_pods_and_chooses_nodes_as_scheduler_does() {
        let pod = |args: &[&str]| -> Pod {
            let labels = json!({PART: "aliquot", COMPONENT: "scheduler"});
            let containers = json!([{"name": "scheduler", "args": args}]);
            let pod = json!({"metadata": {"labels": labels}, "spec": {"containers": containers}});
            serde_json::from_value(pod).unwrap()
        };
        let (settings, policies) = scheduler(&[pod(&[
            "--listen=:1",
            "--default-mem=0",
            "--resource-name",
            "a/gpu",
            "--node-policy=binpack",
            "--gpu-policy=numa,spread",
        ])])
        .unwrap();
        assert_eq!(settings.defaults.memory, Mib(0));
        assert_eq!(settings.names.of(Resource::Gpu), "a/gpu");
        assert_eq!(policies.node, Policy::Binpack);
        assert_eq!(policies.gpu, "numa,spread".parse::<GpuPolicy>().unwrap());

        let (settings, policies) = scheduler(&[]).unwrap();
        assert_eq!(settings.defaults, pod::Settings::default().defaults);
        assert_eq!(policies.node, Policy::Fragmentation);

        let error = scheduler(&[pod(&["--node-policy=best"])]).unwrap_err();
        assert!(error.to_string().contains("of the same release"), "{error}");
    }
}
