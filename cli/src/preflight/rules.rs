//! What changes for one workload when Aliquot takes over.
//!
//! HAMi's rules are those of docs/migrating-from-hami.md. What Aliquot refuses, and what it changes in a pod's
//! environment, is decided by the review of its webhook.

use aliquot_core::request::{BareGpu, Resource, Written, is_other};
use aliquot_core::{Mib, Stage, hami};
use aliquot_k8s::pod;
use aliquot_k8s::view::PodView;
use aliquot_webhook::review::{PodReview, review};
use aliquot_webhook::verdict::Verdict;
use k8s_openapi::api::core::v1::{Container, Pod};
use kube::core::admission::Operation;
use serde_json::Value;

use super::gather::Workload;
use super::systems::{CurrentSystem, Settings};
use crate::components::{IGNORE_LABELS, is_gpu};
use crate::doctor::finding::{About, Checked, Finding, note, ok, problem, warning};

/// The variable by which NVIDIA's runtime gives a container GPUs.
const VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES";
/// HAMi's annotation that chooses the sharing mode.
const MODE: &str = "nvidia.com/vgpu-mode";

/// What changes for a workload, or one finding that nothing does; none if it uses no GPU.
pub fn findings(one: &Workload, settings: &Settings) -> Vec<Finding> {
    let about = About(format!("{} {}/{}", one.kind, one.namespace, one.name));
    let mut all = Vec::new();
    if one.runs {
        all.push(("running", running(one, settings)));
    }
    if one.template {
        all.extend(of_new_pods(&one.pod, &one.namespace, settings));
    }
    all.into_iter()
        .filter_map(|(check, checked)| Some(about.finding(check, checked?)))
        .collect()
}

/// What each rule finds in new pods, by check; most rules find nothing in a given pod.
fn of_new_pods(
    object: &Pod,
    namespace: &str,
    settings: &Settings,
) -> Vec<(&'static str, Option<Checked>)> {
    let mut all = reviewed(object, namespace, settings);
    let view = PodView::from(object);
    let Ok(demand) = pod::demand(&view, &settings.pods) else {
        all.push(("scheduler", other_scheduler(object, settings)));
        return all;
    };
    let unknown = unknown_names(object, settings).into_iter();
    all.extend(unknown.map(|name| ("unknown-resource", Some(unknown_resource(name)))));
    if !demand.requests_gpu() {
        return all;
    }
    all.extend([
        ("left-alone", left_alone(object)),
        ("scheduler", other_scheduler(object, settings)),
    ]);
    let annotated = pod::request_annotation(&view).unwrap_or_default();
    for (container, stage) in pod::containers(object) {
        let (name, resources) = (&container.name, container.resources.as_ref());
        let request = pod::container_request(name, resources, &annotated, &settings.pods);
        if let Ok(request) = request {
            let written = &request.written;
            all.extend([
                ("bare-count", bare(container, written, settings)),
                (
                    "percentage-100",
                    exclusive_by_percentage(container, written, settings),
                ),
            ]);
        }
        all.push(("sidecar", sidecar(container, stage, settings)));
    }
    all.push(("mig-by-memory", mig_by_memory(object, settings)));
    if all.iter().all(|(_, checked)| checked.is_none()) {
        all.push(("unchanged", Some(ok("behaves the same with Aliquot"))));
    }
    all
}

/// What the webhook refuses in such a pod, or changes in its environment. Its other warnings are about defaults, which
/// have rules here.
fn reviewed(
    object: &Pod,
    namespace: &str,
    settings: &Settings,
) -> Vec<(&'static str, Option<Checked>)> {
    let mut object = object.clone();
    if let (Some(_), Some(spec)) = (&object.status, &mut object.spec) {
        // A scheduler wrote it.
        spec.node_name = None;
    }
    let pod = match serde_json::to_value(&object) {
        Ok(pod) => pod,
        Err(error) => return vec![("refused", Some(Err(error.to_string())))],
    };
    let asked = PodReview {
        operation: &Operation::Create,
        sub_resource: "",
        namespace,
        pod: &pod,
        old_pod: &Value::Null,
    };
    match review(&asked, &settings.webhook()) {
        Verdict::Deny(refusals) => {
            let refusals: Vec<String> = refusals.iter().map(ToString::to_string).collect();
            let refused = problem(
                format!("the webhook refuses a new pod: {}", refusals.join("; ")),
                "change it before the migration; webhook.escapeAllowNamespaces names namespaces where pods may bypass their share",
            );
            vec![("refused", Some(refused))]
        }
        Verdict::Allow { warnings, .. } => {
            let about_gpus = warnings.iter().filter(|text| text.contains(VISIBLE));
            let changed = about_gpus.map(|text| {
                warning(
                    format!("the webhook changes a new pod: {text}"),
                    "request nvidia.com/gpu instead; for NVIDIA's own components or an exporter, label the namespace aliquot.dev/webhook: ignore, or add it to webhook.escapeAllowNamespaces",
                )
            });
            changed
                .map(|checked| ("gpus-by-environment", Some(checked)))
                .collect()
        }
    }
}

/// A running pod of HAMi closes its node.
fn running(one: &Workload, settings: &Settings) -> Option<Checked> {
    let is_of_hami = settings.from == CurrentSystem::Hami
        && pod::annotation(&one.pod, hami::ALLOCATED).is_some();
    let node = pod::node(&one.pod).filter(|_| is_of_hami)?;
    Some(note(
        format!("keeps running; Aliquot places nothing on node {node} until it ends"),
        "drain the node before you move it",
    ))
}

/// The GPU resources of NVIDIA's that a pod requests and no node will have.
fn unknown_names<'a>(object: &'a Pod, settings: &Settings) -> Vec<&'a str> {
    let names = &settings.pods.names;
    let usual = |name: &str| Resource::ALL.iter().any(|one| names.of(*one) == name);
    let mut unknown: Vec<&str> = pod::containers(object)
        .filter_map(|(container, _)| container.resources.as_ref())
        .flat_map(|resources| [&resources.limits, &resources.requests])
        .flatten()
        .flat_map(|amounts| amounts.keys().map(String::as_str))
        .filter(|name| is_gpu(name))
        .filter(|name| !usual(name) && !is_other(name, &settings.pods.extra))
        .collect();
    unknown.sort_unstable();
    unknown.dedup();
    unknown
}

fn unknown_resource(name: &str) -> Checked {
    problem(
        format!("requests {name}, which no node has with Aliquot"),
        "offer it with a profile's `rename` and the chart's extraResources, or request another resource",
    )
}

/// A label by which both systems ignore a pod.
fn left_alone(object: &Pod) -> Option<Checked> {
    let labels = object.metadata.labels.as_ref()?;
    let mut all = IGNORE_LABELS.into_iter();
    let label = all.find(|key| labels.get(*key).is_some_and(|value| value == "ignore"))?;
    Some(problem(
        format!(
            "the label {label}: ignore has no effect with Aliquot, whose webhook reviews the pod all the same; with webhook.podsMayIgnore=true the pod is not reviewed, and refused because it requests a GPU"
        ),
        "remove the label; to keep pods away from Aliquot, label their namespace",
    ))
}

/// Another scheduler places the pod.
fn other_scheduler(object: &Pod, settings: &Settings) -> Option<Checked> {
    let scheduler = object.spec.as_ref()?.scheduler_name.as_deref()?;
    let is_ours = scheduler.is_empty() || scheduler == settings.pods.scheduler_name;
    if is_ours || settings.replaced.iter().any(|name| name == scheduler) {
        return None;
    }
    Some(problem(
        format!(
            "has schedulerName {scheduler}: Aliquot does not schedule it, and the node refuses it"
        ),
        "remove schedulerName, or add the scheduler to webhook.replaceSchedulers",
    ))
}

/// A container that requests GPUs, or compute, without memory.
fn bare(container: &Container, written: &Written, settings: &Settings) -> Option<Checked> {
    let has = |resource| written.get(resource).is_some();
    let (from_hami, alone) = (settings.from == CurrentSystem::Hami, !has(Resource::Cores));
    let counts = has(Resource::Gpu) || from_hami && !alone;
    if !counts || has(Resource::Memory) || has(Resource::MemoryPercentage) {
        return None;
    }
    let defaults = &settings.pods.defaults;
    if defaults.bare_gpu == BareGpu::Whole && alone || defaults.memory == Mib(0) {
        return None;
    }
    let today = match (from_hami, alone) {
        (false, _) => "a whole GPU (or a time slice of it, where that plugin shares it)",
        (true, true) => "a whole GPU exclusively (HAMi's default since 2.5)",
        (true, false) => "all memory of a GPU (HAMi's defaultMem is 0)",
    };
    let (name, memory) = (&container.name, defaults.memory);
    let todo = if alone {
        "set compat.bareGpu=whole to give whole GPUs to all such containers, or request gpumem-percentage: 100 and gpucores: 100"
    } else {
        "set scheduler.defaultMem=0 to give all memory of a GPU to all such containers, or request gpumem-percentage: 100"
    };
    Some(warning(
        format!(
            "container {name} gets {today} today; with Aliquot it gets {memory} of a shared GPU"
        ),
        todo,
    ))
}

/// A container with all memory of its GPUs and no amount of compute, to which HAMi gives all of it.
fn exclusive_by_percentage(
    container: &Container,
    written: &Written,
    settings: &Settings,
) -> Option<Checked> {
    let whole = written.get(Resource::MemoryPercentage) == Some(100);
    let cores = written.get(Resource::Cores).is_some();
    let is_other = settings.from != CurrentSystem::Hami || settings.pods.defaults.cores.0 == 100;
    if !whole || cores || is_other {
        return None;
    }
    Some(warning(
        format!(
            "container {} has all compute of its GPU today, because HAMi adds gpucores: 100 to gpumem-percentage: 100; with Aliquot it has all memory, and no compute is allocated",
            container.name
        ),
        "request gpucores: 100 for exclusive use",
    ))
}

/// A sidecar, which counts together with the app containers.
fn sidecar(container: &Container, stage: Stage, settings: &Settings) -> Option<Checked> {
    let gpu = settings.pods.names.of(Resource::Gpu);
    let limits = container.resources.as_ref()?.limits.as_ref()?;
    if stage != Stage::Sidecar || settings.from != CurrentSystem::Hami || !limits.contains_key(gpu)
    {
        return None;
    }
    Some(warning(
        format!(
            "sidecar {} counts as an init container today; with Aliquot it counts in addition to the app containers, so the pod needs more",
            container.name
        ),
        "check the namespace's quota",
    ))
}

/// A pod that requests a MIG instance by memory, as HAMi's may.
fn mig_by_memory(object: &Pod, settings: &Settings) -> Option<Checked> {
    let mode = pod::annotation(object, MODE)?;
    let usual = settings.pods.names.of(Resource::Gpu);
    if settings.from != CurrentSystem::Hami || !mode.contains("mig") {
        return None;
    }
    Some(problem(
        format!(
            "{MODE}: {mode}: HAMi chooses a MIG profile by memory; with Aliquot, GPUs with dynamic MIG do not offer {usual}"
        ),
        "request nvidia.com/mig-<profile>, and give the nodes a profile with mode: mig",
    ))
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
