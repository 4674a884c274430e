//! What changes for one workload when Aliquot takes over.
//!
//! HAMi's rules are those of docs/migrating-from-hami.md. What Aliquot refuses is asked of the code
//! that the scheduler and the webhook read pods with.
//! Fed by: [`super::gather`]. Must not: ask anybody.

use aliquot_core::ledger::Held;
use aliquot_core::request::{BareGpu, Resource, is_other};
use aliquot_core::{Mib, Stage, hami};
use aliquot_k8s::pod;
use k8s_openapi::api::core::v1::{Container, Pod};

use super::{From, around, environment};
use crate::doctor::finding::{About, Finding};

/// HAMi's wish of a way to share.
const MODE: &str = "nvidia.com/vgpu-mode";
/// Both systems leave such pods alone.
const IGNORE: [&str; 2] = ["hami.io/webhook", "aliquot.dev/webhook"];

/// What will be.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What is today.
    pub from: From,
    /// Names and defaults.
    pub pods: pod::Settings,
    /// Schedulers whose pods are taken over.
    pub replaced: Vec<String>,
    /// Runtime classes of NVIDIA's runtime.
    pub nvidia_runtime_classes: Vec<String>,
}

/// A workload.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Its kind.
    pub kind: &'static str,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// It says what pods are to be made; else it is one of those that were.
    pub template: bool,
    /// It is a pod.
    pub runs: bool,
    /// Its template, or itself.
    pub pod: Pod,
}

/// What changes; one finding that nothing does; none for what has to do with no GPU.
pub fn judge(one: &Workload, settings: &Settings) -> Vec<Finding> {
    let about = About(format!("{} {}/{}", one.kind, one.namespace, one.name));
    let mut found = Vec::new();
    if one.runs {
        found.extend(running(one, settings, &about));
    }
    if !one.template {
        return found;
    }
    found.extend(environment::opened(&one.pod, settings, &about));
    let demand = match pod::demand(&one.pod, &settings.pods) {
        Err(error) => {
            found.push(about.problem(
                "refused",
                format!("a new pod is refused: {error}"),
                "change it before the switch",
            ));
            return found;
        }
        Ok(demand) => demand,
    };
    found.extend(unknown_names(&one.pod, settings, &about));
    if !demand.asks() {
        return found;
    }
    if let Some(label) = ignored(&one.pod) {
        let what =
            format!("the label {label}: ignore keeps it away from Aliquot, too: it gets no share");
        let todo = "take the label off once its nodes are Aliquot's";
        found.push(about.problem("left-alone", what, todo));
    }
    found.extend(placed(&one.pod, settings, &about));
    found.extend(around::judge(&one.pod, &about));
    for (container, stage) in pod::containers(&one.pod) {
        found.extend(bare(container, settings, &about));
        found.extend(sidecar(container, stage, settings, &about));
    }
    if settings.from == From::Hami {
        found.extend(cut(&one.pod, settings, &about));
    }
    if found.is_empty() {
        found.push(about.ok("unchanged", "means the same"));
    }
    found
}

/// What was given to a pod that runs is counted.
fn running(one: &Workload, settings: &Settings, about: &About) -> Option<Finding> {
    if settings.from != From::Hami || pod::annotation(&one.pod, hami::ALLOCATED).is_none() {
        return None;
    }
    let check = "running";
    match pod::held(&one.pod, &settings.pods)? {
        (_, Held::Uses(_)) => Some(about.ok(check, "stays, and is counted until it ends")),
        (node, Held::Unreadable) => Some(about.problem(
            check,
            format!("what HAMi gave it cannot be read: Aliquot places nothing on {node} while it is there"),
            "delete the pod, so that HAMi places it anew",
        )),
    }
}

/// It asks for resources of NVIDIA's that nobody will offer.
fn unknown_names(object: &Pod, settings: &Settings, about: &About) -> Vec<Finding> {
    let names = &settings.pods.names;
    let usual = |name: &str| Resource::ALL.iter().any(|one| names.of(*one) == name);
    let mut unknown: Vec<&str> = pod::containers(object)
        .filter_map(|(container, _)| container.resources.as_ref())
        .flat_map(|resources| [&resources.limits, &resources.requests])
        .flatten()
        .flat_map(|amounts| amounts.keys().map(String::as_str))
        .filter(|name| name.starts_with("nvidia.com/"))
        .filter(|name| !usual(name) && !is_other(name, &settings.pods.extra))
        .collect();
    unknown.sort_unstable();
    unknown.dedup();
    let finding = |name: &str| {
        about.problem(
            "unknown-resource",
            format!("asks for {name}, which nobody offers then"),
            "a profile with `rename: …` and extraResources in the chart offers it; or ask for another",
        )
    };
    unknown.into_iter().map(finding).collect()
}

fn ignored(object: &Pod) -> Option<&'static str> {
    let labels = object.metadata.labels.as_ref()?;
    let mut all = IGNORE.into_iter();
    all.find(|key| labels.get(*key).is_some_and(|value| value == "ignore"))
}

/// Another scheduler places it, or nobody does.
fn placed(object: &Pod, settings: &Settings, about: &About) -> Vec<Finding> {
    let mut found = Vec::new();
    let Some(spec) = &object.spec else {
        return found;
    };
    let scheduler = spec.scheduler_name.as_deref().unwrap_or_default();
    let ours = ["", "aliquot-scheduler"].contains(&scheduler);
    if !ours && !settings.replaced.iter().any(|name| name == scheduler) {
        found.push(about.problem(
            "scheduler",
            format!(
                "names the scheduler {scheduler}: Aliquot leaves it alone, and its node refuses it"
            ),
            "leave schedulerName out, or add it to webhook.replaceSchedulers",
        ));
    }
    let bound = spec.node_name.as_deref().filter(|name| !name.is_empty());
    let runs = object.status.is_some();
    if let Some(node) = bound.filter(|_| !runs) {
        found.push(about.problem(
            "refused",
            format!("names the node {node} (spec.nodeName), so that no scheduler sees it: refused"),
            "a nodeSelector on kubernetes.io/hostname",
        ));
    }
    found
}

/// It says how many GPUs, and not how much of each.
fn bare(container: &Container, settings: &Settings, about: &About) -> Option<Finding> {
    let names = &settings.pods.names;
    let resources = container.resources.as_ref()?;
    let has = |resource| {
        let name = names.of(resource);
        let both = [&resources.limits, &resources.requests];
        both.into_iter()
            .flatten()
            .any(|amounts| amounts.contains_key(name))
    };
    let memory = has(Resource::Memory) || has(Resource::MemoryPercentage);
    if !has(Resource::Gpu) || memory {
        return None;
    }
    let (defaults, alone) = (&settings.pods.defaults, !has(Resource::Cores));
    let whole = defaults.bare_gpu == BareGpu::Whole && alone || defaults.memory == Mib(0);
    let today = match (settings.from, alone) {
        (From::Nvidia, _) => "a whole GPU (or a turn, where that plugin shares it)",
        (From::Hami, true) => "a whole GPU, alone (HAMi's default since 2.5)",
        (From::Hami, false) => "all memory of a GPU (HAMi's defaultMem is 0)",
    };
    if whole {
        return None;
    }
    let (name, memory) = (&container.name, defaults.memory);
    Some(about.warning(
        "bare-count",
        format!("container {name} gets {today} today; then {memory} of one that others share"),
        "compat.bareGpu=whole keeps whole GPUs for all; or write gpumem-percentage: 100 and gpucores: 100",
    ))
}

/// It runs beside the others, and counts so.
fn sidecar(
    container: &Container,
    stage: Stage,
    settings: &Settings,
    about: &About,
) -> Option<Finding> {
    let gpu = settings.pods.names.of(Resource::Gpu);
    let limits = container.resources.as_ref()?.limits.as_ref()?;
    if stage != Stage::Sidecar || settings.from != From::Hami || !limits.contains_key(gpu) {
        return None;
    }
    let what = format!(
        "sidecar {} counts as an init container today; then beside the app containers, so the pod needs more",
        container.name
    );
    Some(about.warning("sidecar", what, "look at the namespace's quota"))
}

/// It asks for a MIG instance by memory.
fn cut(object: &Pod, settings: &Settings, about: &About) -> Option<Finding> {
    let mode = pod::annotation(object, MODE)?;
    let usual = settings.pods.names.of(Resource::Gpu);
    mode.contains("mig").then(|| {
        about.problem(
            "mig-by-memory",
            format!("{MODE}: {mode}: HAMi picks a profile by memory; {usual} is then offered by no card that is cut as pods come"),
            "ask for nvidia.com/mig-<profile>, and give the nodes a profile with mode: mig",
        )
    })
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
