//! `preflight`: what a cluster has before an installation with the chart's default names: versions, CDI, who
//! owns `nvidia.com/gpu` today; and the workloads that would then behave differently ([`rules`]).

pub mod gather;
mod gpu_operator;
mod other_plugins;
pub mod rules;
pub mod systems;

use std::collections::BTreeMap;

use aliquot_core::inventory::INVENTORY;
use aliquot_k8s::flags::{FlagError, RequestFlags};
use aliquot_k8s::selection;
use clap::Args;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{Node, NodeSystemInfo, Pod};
use kube::Api;
use kube::api::DynamicObject;
use thiserror::Error;

use crate::access::{Access, AccessError, all};
use crate::components::{by_node, node_name, offered};
use crate::doctor::facts::minor;
use crate::doctor::facts::{Fact, fact};
use crate::doctor::finding::{About, Checked, Finding, Report, note, ok, problem, warning};
use crate::doctor::{device_class, gather as installation};
use crate::output::{Output, with_causes};
use crate::table::some;
use gather::{Missing, Workload, workloads};
use other_plugins::{HAMI, other_plugins, plugins};
use systems::{CurrentSystem, Settings};

/// The minor versions of Kubernetes in docs/guides/support-matrix.md.
const OLDEST: u32 = 30;
const NEWEST: u32 = 37;
/// The label of nodes on which the agent starts, by the chart's devicePlugin.nvidiaNodeSelector.
const OURS: (&str, &str) = ("gpu", "on");
/// Labels of nodes with NVIDIA's GPUs: those of GPU Operator, Node Feature Discovery, GKE and EKS.
const GPU_LABELS: [&str; 6] = [
    "nvidia.com/gpu.present",
    "feature.node.kubernetes.io/pci-10de.present",
    "feature.node.kubernetes.io/pci-0300_10de.present",
    "feature.node.kubernetes.io/pci-0302_10de.present",
    "cloud.google.com/gke-accelerator",
    "k8s.amazonaws.com/accelerator",
];
/// Labels that name the manufacturer of a node's GPUs: those of AKS and Karpenter.
const MANUFACTURER_LABELS: [&str; 2] = [
    "kubernetes.azure.com/accelerator",
    "karpenter.k8s.aws/instance-gpu-manufacturer",
];

/// The flags of `preflight`.
#[derive(Debug, Args)]
pub struct Preflight {
    /// The system that serves the GPUs today; defaults to HAMi where its device plugin runs, else to NVIDIA's
    #[arg(long, value_enum)]
    pub from: Option<CurrentSystem>,
    /// Only workloads of this namespace; defaults to all namespaces
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// Schedulers whose pods the webhook will take over, separated by commas
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "default-scheduler,hami-scheduler"
    )]
    pub replace_scheduler: Vec<String>,
    /// Output format; wide also lists checks that passed and workloads that stay the same
    #[arg(short, long, value_enum, default_value = "table")]
    pub output: Output,
    /// Resource names and defaults that Aliquot will have
    #[command(flatten)]
    pub request: RequestFlags,
    #[command(flatten)]
    pub access: Access,
}

#[derive(Debug, Error)]
pub enum PreflightError {
    #[error(transparent)]
    Flags(#[from] FlagError),
    #[error(transparent)]
    Access(#[from] AccessError),
}

impl Preflight {
    /// The report, also with a finding for each change of a workload, and one for each that stays the same.
    pub async fn run(&self) -> Result<Report, PreflightError> {
        let pods = self.request.settings()?;
        let facts = facts(&self.access, self.namespace.clone()).await?;
        let settings = Settings {
            from: self.from.unwrap_or_else(|| current(&facts)),
            pods,
            replaced: self.replace_scheduler.clone(),
        };
        let mut found = checks(&facts);
        found.extend(changes(&facts, &settings));
        Ok(Report::new(found))
    }
}

#[derive(Clone, Debug)]
pub struct PreFacts {
    /// The namespace of the installation, which the webhook does not review.
    pub namespace: String,
    pub version: Fact<String>,
    pub nodes: Fact<Vec<Node>>,
    /// All workloads, and pods that have not ended.
    pub workloads: Fact<Vec<Workload>>,
    /// If set, only workloads of this namespace are judged; the pods of all show who owns the GPUs.
    pub only: Option<String>,
    /// Kinds of workloads that could not be listed, and why.
    pub unlisted: Missing,
    /// The `ClusterPolicies` of GPU Operator; none without the operator.
    pub policies: Fact<Vec<DynamicObject>>,
    /// The extended resources of `DeviceClasses`, by the classes' names.
    pub device_classes: Fact<BTreeMap<String, String>>,
    /// The namespaces with a label that exempts their pods from admission.
    pub exempt: Fact<Vec<String>>,
    /// Whether there is a webhook configuration of Aliquot.
    pub installed: Fact<bool>,
}

impl PreFacts {
    fn judges(&self, one: &Workload) -> bool {
        self.only.as_ref().is_none_or(|only| one.namespace == *only)
    }
}

/// Reads them; what cannot be read is an error in its field.
pub async fn facts(access: &Access, only: Option<String>) -> Result<PreFacts, AccessError> {
    let client = access.client().await?;
    let hooks: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let (workloads, unlisted) = match workloads(&client).await {
        Ok((found, missing)) => (Ok(found), missing),
        Err(error) => (Err(with_causes(&error)), Vec::new()),
    };
    let version = client.apiserver_version().await;
    Ok(PreFacts {
        namespace: access.usual_namespace().to_owned(),
        version: fact(version.map(|version| version.git_version)),
        nodes: fact(all(&client, "nodes").await),
        workloads,
        only,
        unlisted,
        policies: gpu_operator::policies(&client).await,
        device_classes: installation::device_classes(&client).await,
        exempt: installation::exempt_namespaces(&client).await,
        installed: fact(
            hooks
                .get_opt(installation::WEBHOOK)
                .await
                .map(|hook| hook.is_some()),
        ),
    })
}

/// The findings of all checks.
pub fn checks(facts: &PreFacts) -> Vec<Finding> {
    let about = About::cluster();
    let mut found = about.each([
        ("installed", installed(facts)),
        ("kubernetes", kubernetes(facts)),
    ]);
    match &facts.nodes {
        Err(why) => found.push(about.finding("nodes", Err(why.clone()))),
        Ok(nodes) => {
            let nodes: Vec<&Node> = nodes.iter().filter(|node| has_gpus(node)).collect();
            found.push(labelled(&nodes));
            found.extend(taints(&nodes));
            found.extend(by_version(
                &nodes,
                |info| &info.kubelet_version,
                ("kubelet", kubelet),
            ));
            found.extend(by_version(
                &nodes,
                |info| &info.container_runtime_version,
                ("container-runtime", runtime),
            ));
            match pods(facts) {
                Err(why) => found.push(about.finding("gpu-owner", Err(why))),
                Ok(pods) => found.extend(owners(&nodes, &pods)),
            }
        }
    }
    let nodes = facts.nodes.as_deref().unwrap_or_default();
    let workloads = facts.workloads.as_deref().unwrap_or_default();
    found.extend(gpu_operator::checks(&facts.policies, nodes, workloads));
    let device_classes = device_class::check(&facts.device_classes, &[]);
    found.push(about.finding("device-classes", device_classes));
    found
}

/// The system that serves the GPUs today, by its pods.
fn current(facts: &PreFacts) -> CurrentSystem {
    let pods = pods(facts).unwrap_or_default();
    if plugins(&pods).any(|(who, _)| who == HAMI) {
        CurrentSystem::Hami
    } else {
        CurrentSystem::Nvidia
    }
}

/// What changes for the workloads whose pods the webhook will review.
fn changes(facts: &PreFacts, settings: &Settings) -> Vec<Finding> {
    let unmade = |about: About, why: &str| about.finding("workloads", Err(why.to_owned()));
    let mut found: Vec<Finding> = facts
        .unlisted
        .iter()
        .map(|(what, why)| unmade(About((*what).to_owned()), why))
        .collect();
    match (&facts.workloads, &facts.exempt) {
        (Ok(workloads), Ok(exempt)) => {
            let left = |one: &Workload| {
                one.namespace == facts.namespace || exempt.contains(&one.namespace)
            };
            let judged = workloads
                .iter()
                .filter(|one| facts.judges(one) && !left(one));
            found.extend(judged.flat_map(|one| rules::findings(one, settings)));
        }
        (Err(why), _) | (_, Err(why)) => found.push(unmade(About::cluster(), why)),
    }
    found
}

fn installed(facts: &PreFacts) -> Checked {
    if *facts.installed.as_ref()? {
        return note(
            "Aliquot is installed already",
            "kubectl aliquot doctor checks the installation",
        );
    }
    ok("Aliquot is not installed")
}

fn kubernetes(facts: &PreFacts) -> Checked {
    let version = facts.version.as_ref()?;
    let found = format!("the API server has version {version}");
    match minor(version) {
        None => Err(format!("{found}; expected v1.{OLDEST} or newer")),
        Some(minor) if minor < OLDEST => problem(
            format!("{found}: helm does not install the chart"),
            format!("update the cluster to 1.{OLDEST} or newer"),
        ),
        Some(minor) if minor > NEWEST => warning(
            format!("{found}, which is newer than what was tested"),
            format!("docs/guides/support-matrix.md has what was tested up to 1.{NEWEST}"),
        ),
        Some(_) => ok(found),
    }
}

fn label<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    let labels = node.metadata.labels.as_ref()?;
    labels.get(key).map(String::as_str)
}

fn is_ours(node: &Node) -> bool {
    label(node, OURS.0) == Some(OURS.1)
}

fn has_gpus(node: &Node) -> bool {
    let known = |key: &str| label(node, key).is_some_and(|value| value != "false");
    let names_nvidia = |key: &str| label(node, key) == Some("nvidia");
    is_ours(node)
        || GPU_LABELS.into_iter().any(known)
        || MANUFACTURER_LABELS.into_iter().any(names_nvidia)
        || offered(node).next().is_some()
}

/// About these nodes together.
fn about_nodes(nodes: &[&Node]) -> About {
    About(some(nodes.iter().map(|node| node_name(node))))
}

/// The agent starts on the nodes with GPUs.
fn labelled(nodes: &[&Node]) -> Finding {
    let check = "nodes";
    if nodes.is_empty() {
        let none = warning(
            "no node offers a resource of NVIDIA's or has a label that says it has GPUs",
            "kubectl label node NODE gpu=on: the agent starts on nodes with this label (devicePlugin.nvidiaNodeSelector)",
        );
        return About::cluster().finding(check, none);
    }
    let others: Vec<&Node> = nodes
        .iter()
        .copied()
        .filter(|node| !is_ours(node))
        .collect();
    if others.is_empty() {
        return About::cluster().finding(check, ok("all nodes with GPUs have the label gpu=on"));
    }
    let unlabelled = note(
        "no label gpu=on: the agent will not start here",
        "kubectl label node NODE gpu=on, when no other plugin offers nvidia.com/gpu on it",
    );
    about_nodes(&others).finding(check, unlabelled)
}

/// Taints of these nodes that keep the agent off them.
fn taints(nodes: &[&Node]) -> Vec<Finding> {
    let check = "taints";
    let mut groups: BTreeMap<String, Vec<&Node>> = BTreeMap::new();
    for node in nodes.iter().copied() {
        let taints = selection::taints(node);
        for taint in taints.iter().filter(|taint| !is_tolerated(taint)) {
            let text = taint.replace("=:", ":");
            groups.entry(text).or_default().push(node);
        }
    }
    if groups.is_empty() {
        let none = ok("no taint keeps the agent off the nodes with GPUs");
        return vec![About::cluster().finding(check, none)];
    }
    let kept_off = groups.into_iter().map(|(taint, nodes)| {
        let not_tolerated = warning(
            format!("the taint {taint}: with the chart's values, the agent does not start here"),
            "add a toleration to devicePlugin.pod.tolerations, beside the chart's own, and to pods that request GPUs",
        );
        about_nodes(&nodes).finding(check, not_tolerated)
    });
    kept_off.collect()
}

/// Whether the agent's pods tolerate a taint, by the chart's values or as those of every `DaemonSet`.
fn is_tolerated(taint: &str) -> bool {
    let key = taint.split(['=', ':']).next().unwrap_or_default();
    key.starts_with("node.kubernetes.io/")
        || key.starts_with("node.cloudprovider.kubernetes.io/")
        || key == "aliquot.dev/gpu-drain"
        || key == "nvidia.com/gpu" && taint.ends_with(":NoSchedule")
}

/// A finding for each version that nodes report, about these nodes.
fn by_version(
    nodes: &[&Node],
    version: fn(&NodeSystemInfo) -> &str,
    (check, verdict): (&'static str, fn(&str) -> Checked),
) -> Vec<Finding> {
    let mut groups: BTreeMap<&str, Vec<&Node>> = BTreeMap::new();
    for node in nodes.iter().copied() {
        let status = node.status.as_ref();
        let info = status.and_then(|status| status.node_info.as_ref());
        let version = info.map(version).unwrap_or_default();
        groups.entry(version).or_default().push(node);
    }
    groups
        .into_iter()
        .map(|(version, nodes)| about_nodes(&nodes).finding(check, verdict(version)))
        .collect()
}

fn kubelet(version: &str) -> Checked {
    let found = format!("the kubelet has version {version}");
    match minor(version) {
        None => Err(format!("{found}; expected v1.{OLDEST} or newer")),
        Some(minor) if minor < OLDEST => warning(
            format!("{found}, which is older than what was tested"),
            format!("update it to 1.{OLDEST} or newer"),
        ),
        Some(_) => ok(found),
    }
}

/// Containers get their GPUs through CDI.
fn runtime(version: &str) -> Checked {
    let (name, number) = version.split_once("://").unwrap_or((version, ""));
    let mut numbers = number.split('.').map_while(|part| part.parse::<u32>().ok());
    let number = numbers.next().zip(numbers.next());
    let found = format!("the container runtime is {version}");
    match (name, number) {
        ("containerd", Some(number)) if number >= (2, 0) => ok(format!(
            "{found}, whose CDI is on unless its configuration has enable_cdi = false"
        )),
        ("containerd", Some((1, 7))) => warning(
            format!(
                "{found}, whose CDI is off by default; its configuration cannot be read from here"
            ),
            "set enable_cdi = true under its CRI plugin and restart it, unless that is done (docs/guides/container-runtime.md)",
        ),
        ("cri-o", Some(number)) if number >= (1, 28) => ok(format!("{found}, which has CDI")),
        ("containerd" | "cri-o", Some(_)) => problem(
            format!("{found}, which does not support CDI: no container with a share starts"),
            "update it (docs/guides/container-runtime.md)",
        ),
        _ => Err(format!(
            "{found}; whether it supports CDI is not known, expected containerd or CRI-O"
        )),
    }
}

/// All pods that have not ended.
fn pods(facts: &PreFacts) -> Fact<Vec<&Pod>> {
    let workloads = facts.workloads.as_ref().map_err(Clone::clone)?;
    let pods = workloads.iter().filter(|one| one.runs);
    Ok(pods.map(|one| &one.pod).collect())
}

/// Who offers `nvidia.com/gpu` today.
fn owners(nodes: &[&Node], pods: &[&Pod]) -> Vec<Finding> {
    let check = "gpu-owner";
    let mut found = Vec::new();
    let mut others: BTreeMap<String, Vec<&Node>> = BTreeMap::new();
    let by_node = by_node(pods.iter().copied());
    for node in nodes.iter().copied() {
        let here = by_node.get(node_name(node));
        let here = here.map(Vec::as_slice).unwrap_or_default();
        let about = About(node_name(node).to_owned());
        let annotations = node.metadata.annotations.as_ref();
        let has_inventory = annotations.is_some_and(|all| all.contains_key(INVENTORY));
        let known = plugins(here).next();
        let offered = offered(node).collect::<Vec<_>>().join(", ");
        let hidden = format!("a plugin that has no known pod and offers {offered}");
        match known {
            Some(_) if is_ours(node) => found.extend(other_plugins(here, &about)),
            Some((who, _)) => others.entry(who.to_owned()).or_default().push(node),
            None if has_inventory || offered.is_empty() => {}
            None if is_ours(node) => {
                let both = problem(
                    format!(
                        "served by {hidden}: two plugins cannot offer the same resource on a node"
                    ),
                    "disable the plugin: it may be a service of the node, as on AKS and Bottlerocket (docs/migrating-from-nvidia.md)",
                );
                found.push(about.finding(check, both));
            }
            None => others.entry(hidden).or_default().push(node),
        }
    }
    for (who, nodes) in others {
        let left = note(
            format!("served by {who}; Aliquot leaves nodes without the label gpu=on alone"),
            "docs/migrating-from-nvidia.md moves them node by node",
        );
        found.push(about_nodes(&nodes).finding(check, left));
    }
    if found.is_empty() {
        let none = ok("no other plugin offers a resource of NVIDIA's");
        found.push(About::cluster().finding(check, none));
    }
    found
}

#[cfg(test)]
mod tests;
