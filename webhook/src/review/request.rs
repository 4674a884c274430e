//! What a pod requests, and of whom: its scheduler, and the devices in each container's `resources`
//! and in the pod's annotation, or why they are invalid. Annotations that only a scheduler may write
//! are removed first.
//!
//! Resources are read as the scheduler reads them, by `aliquot_core::request`. Besides the five
//! usual ones there are others: MIG instances, and the names under which an administrator advertises
//! renamed GPUs.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_core::allocation::ALLOCATION;
use aliquot_core::request::{
    self, ContainerRequest, InvalidResource, MAX_CONTAINERS, MAX_CONTAINERS_IN_ALL, RequestError,
    Resource, Written, is_other,
};
use aliquot_core::request_annotation::{AnnotationError, REQUEST};
use aliquot_core::resize::{AMOUNTS, RESIZE_STATUS};
use aliquot_core::{Excerpt, Preferences, RequestAnnotation, burst, hami, mig, quantity};
use serde_json::Value;

use super::PodReview;
use crate::pod::{self, Container, Kind};
use crate::settings::Settings;
use crate::verdict::{Findings, Refusal};

/// Annotations that a scheduler alone writes: ours, or HAMi's.
pub(super) const RESERVED: [&str; 10] = {
    let [a, b, c, d, e, f, g] = hami::WRITTEN;
    let plan = "aliquot.dev/preemption";
    [ALLOCATION, plan, RESIZE_STATUS, a, b, c, d, e, f, g]
};

/// Removes the reserved annotations of a new pod, whatever its scheduler; a warning for each.
/// Copied manifests often have them.
pub(super) fn remove_reserved(findings: &mut Findings) {
    for name in RESERVED {
        if findings.editor.remove(&["metadata", "annotations", name]) {
            findings.warnings.push(format!(
                "annotation {name} removed: only the scheduler may set it"
            ));
        }
    }
}

/// The pod names no scheduler, ours, or one that ours replaces.
pub(super) fn is_ours(pod: &Value, settings: &Settings) -> bool {
    let name = pod["spec"]["schedulerName"].as_str().unwrap_or_default();
    name.is_empty()
        || name == settings.scheduler_name
        || settings.replaced_schedulers.contains(name)
}

/// Warns of an init container with a share that ends before the others start.
pub(super) fn warn_of_ended_share(
    containers: &[Container<'_>],
    request: &PodRequest<'_>,
    findings: &mut Findings,
) {
    let mut ends = containers.iter().filter(|container| {
        container.kind == Kind::Init && container.raw["restartPolicy"] != "Always"
    });
    if let Some(container) = ends.find(|container| request.of(container).is_some()) {
        findings.warnings.push(format!(
            "container {}: once it has ended, the pod ends too if the kubelet is restarted while its node's agent does not run (kubernetes#138446); expected: the share in an app container or a sidecar, unless the pod may start anew",
            container.shown()
        ));
    }
}

/// The part of a pod's request that its annotation has, or why it cannot be read.
pub(super) fn annotated(pod: &Value) -> Result<RequestAnnotation, Refusal> {
    match pod["metadata"]["annotations"][REQUEST].as_str() {
        None => Ok(RequestAnnotation::default()),
        Some(text) => RequestAnnotation::decode(text).map_err(|error| Refusal {
            field: annotation_field(""),
            message: match error {
                AnnotationError::Codec(error) => {
                    format!("{error}; expected: no such annotation, or one that Aliquot wrote")
                }
                invalid => invalid.to_string(),
            },
        }),
    }
}

fn annotation_field(part: &str) -> String {
    format!("metadata.annotations[{REQUEST:?}]{part}")
}

pub(super) struct PodRequest<'a> {
    /// In the order of their containers.
    pub(super) devices: Vec<DeviceRequest<'a>>,
    is_refused: bool,
}

impl<'a> PodRequest<'a> {
    /// Whether no container requests devices of ours or tries to.
    pub(super) fn is_empty(&self) -> bool {
        self.devices.is_empty() && !self.is_refused
    }

    pub(super) fn of(&self, container: &Container<'_>) -> Option<&DeviceRequest<'a>> {
        let place = |request: &DeviceRequest<'_>| request.container.place();
        let found = self.devices.binary_search_by_key(&container.place(), place);
        found.ok().map(|index| &self.devices[index])
    }
}

/// A container that requests devices, and what it wrote.
pub(super) struct DeviceRequest<'a> {
    pub(super) container: Container<'a>,
    pub(super) written: Written,
    /// Its counts of other resources of ours, also those of 0.
    pub(super) others: BTreeMap<&'a str, u32>,
}

impl DeviceRequest<'_> {
    pub(super) fn device_count(&self) -> u64 {
        let others: u64 = self.others.values().copied().map(u64::from).sum();
        let usual = self.written.get(Resource::Gpu);
        others + usual.unwrap_or_else(|| u64::from(self.others.is_empty()))
    }
}

/// Whether one of these containers requests a share, or tries to.
pub(super) fn any_asks(pod: &Value, containers: &[Container<'_>], settings: &Settings) -> bool {
    let Ok(annotated) = annotated(pod) else {
        return true;
    };
    let asks = |container: &Container<'_>| {
        let request = container_request(container, &annotated, settings);
        request.map_or(true, |request| request.asks(&settings.defaults))
    };
    let mut lasting = containers.iter().filter(|c| c.kind != Kind::Ephemeral);
    lasting.any(asks)
}

/// Whether the container requests a number of devices, so that the kubelet asks a device plugin
/// before it starts. Memory, compute and priority are not handed out by any plugin, and a count of
/// 0 asks for nothing.
pub(super) fn counts_devices(container: &Container<'_>, settings: &Settings) -> bool {
    let mut names = names(container, settings).into_iter();
    names.any(|name| {
        let text = ResourceTexts::named(container, name).effective();
        !is_amount(name, settings)
            && text.is_some_and(|(_, text)| request::count(text).is_ok_and(|count| count > 0))
    })
}

/// Whether the resource is memory, compute or priority, which no plugin hands out.
pub(super) fn is_amount(name: &str, settings: &Settings) -> bool {
    let mut amounts = Resource::ALL.into_iter().filter(|&r| r != Resource::Gpu);
    amounts.any(|resource| settings.names.of(resource) == name)
}

/// The requests of a pod's containers, with a refusal for every error in them.
pub(super) fn read<'a>(
    pod: &Value,
    containers: &[Container<'a>],
    settings: &Settings,
    findings: &mut Findings,
) -> PodRequest<'a> {
    let (mut devices, mut refusals) = (Vec::new(), Vec::new());
    let annotated = annotated(pod).unwrap_or_else(|refusal| {
        refusals.push(refusal);
        RequestAnnotation::default()
    });
    for container in containers {
        if container.kind == Kind::Ephemeral {
            continue;
        }
        refusals.extend(differing_requests(container, settings));
        match container_request(container, &annotated, settings) {
            Ok(request) if request.asks(&settings.defaults) => {
                refusals.extend(refused_counts(container, &request, settings));
                devices.push(DeviceRequest {
                    container: *container,
                    written: request.written,
                    others: request.others,
                });
            }
            Ok(request) => {
                refusals.extend(amount_without_gpu(container, &request.written, settings));
            }
            Err(errors) => {
                let errors = errors.iter();
                refusals.extend(errors.map(|error| refusal(container, error, settings)));
            }
        }
    }
    if let Some(beyond) = devices.get(MAX_CONTAINERS) {
        refusals.push(Refusal {
            field: beyond.container.field(),
            message: format!(
                "{:?} is one of {} containers that request GPUs; expected: at most {MAX_CONTAINERS} in a pod",
                beyond.container.shown(),
                devices.len()
            ),
        });
    }
    let lasting = containers.iter().filter(|c| c.kind != Kind::Ephemeral);
    let beyond = lasting.clone().nth(MAX_CONTAINERS_IN_ALL);
    if let Some(beyond) = beyond.filter(|_| !devices.is_empty()) {
        refusals.push(Refusal {
            field: beyond.field(),
            message: format!(
                "{:?} is one of {} containers; expected: at most {MAX_CONTAINERS_IN_ALL} in a pod that requests GPUs",
                beyond.shown(),
                lasting.count()
            ),
        });
    }
    let is_refused = !refusals.is_empty();
    findings.refusals.extend(refusals);
    PodRequest {
        devices,
        is_refused,
    }
}

fn container_request<'a>(
    container: &Container<'a>,
    annotated: &RequestAnnotation,
    settings: &Settings,
) -> Result<ContainerRequest<'a>, Vec<InvalidResource>> {
    let annotated = annotated.of(container.name());
    let amounts = amounts(*container);
    ContainerRequest::read(amounts, &annotated, &settings.names, &settings.extra)
}

/// Names and values of limits, then of requests.
fn amounts<'a>(container: Container<'a>) -> impl Iterator<Item = (&'a str, &'a str)> {
    let raw: &'a Value = container.raw;
    let lists = ["limits", "requests"].map(|list| raw["resources"][list].as_object());
    let all = lists.into_iter().flatten().flatten();
    // The API server writes every quantity as a string.
    all.map(|(name, value)| (name.as_str(), value.as_str().unwrap_or("")))
}

fn names<'a>(container: &Container<'a>, settings: &Settings) -> BTreeSet<&'a str> {
    let usual = Resource::ALL.map(|resource| settings.names.of(resource));
    let all = amounts(*container).map(|(name, _)| name);
    let ours = all.filter(|name| usual.contains(name) || is_other(name, &settings.extra));
    ours.collect()
}

/// The values of one resource of one container, as written in limits and in requests.
pub(super) struct ResourceTexts<'a> {
    pub(super) limit: Option<&'a str>,
    pub(super) request: Option<&'a str>,
}

impl<'a> ResourceTexts<'a> {
    pub(super) fn named(container: &Container<'a>, name: &str) -> Self {
        let text = |list: &str| {
            let value = container.raw["resources"][list].get(name)?;
            Some(value.as_str().unwrap_or(""))
        };
        Self {
            limit: text("limits"),
            request: text("requests"),
        }
    }

    /// The list and the value that count: the limit, or the request where there is no limit.
    pub(super) fn effective(&self) -> Option<(&'static str, &'a str)> {
        let limit = self.limit.map(|text| ("limits", text));
        limit.or_else(|| self.request.map(|text| ("requests", text)))
    }
}

fn field(container: &Container<'_>, list: &str, name: &str) -> String {
    let name = Excerpt::from(name);
    format!("{}.resources.{list}[{name:?}]", container.field())
}

fn refusal(container: &Container<'_>, error: &InvalidResource, settings: &Settings) -> Refusal {
    let (list, text) = ResourceTexts::named(container, &error.name)
        .effective()
        .unwrap_or(("limits", ""));
    let message = match &error.source {
        RequestError::MemoryTwice => {
            let memory = settings.names.of(Resource::Memory);
            let text = Excerpt::from(text);
            format!("{text:?} cannot be combined with {memory}; expected: only one of the two")
        }
        other => other.to_string(),
    };
    Refusal {
        field: field(container, list, &error.name),
        message,
    }
}

fn differing_requests(container: &Container<'_>, settings: &Settings) -> Vec<Refusal> {
    let differing = |name| {
        let texts = ResourceTexts::named(container, name);
        let (limit, request) = (texts.limit?, texts.request?);
        if limit == request || quantity::whole(limit) == quantity::whole(request) {
            return None;
        }
        let (limit, request) = (Excerpt::from(limit), Excerpt::from(request));
        Some(Refusal {
            field: field(container, "requests", name),
            message: format!(
                "{request:?} differs from the limit; expected: {limit:?}, or no request"
            ),
        })
    };
    let names = names(container, settings).into_iter();
    names.filter_map(differing).collect()
}

/// Memory, compute or a priority without a number of GPUs, where no default supplies one.
fn amount_without_gpu(
    container: &Container<'_>,
    written: &Written,
    settings: &Settings,
) -> Option<Refusal> {
    let resource = Resource::ALL
        .into_iter()
        .find(|&resource| resource != Resource::Gpu && written.get(resource).is_some())?;
    let gpu = settings.names.of(Resource::Gpu);
    let name = settings.names.of(resource);
    Some(match ResourceTexts::named(container, name).effective() {
        Some((list, text)) => Refusal {
            field: field(container, list, name),
            message: format!("{:?} requires {gpu} of at least 1", Excerpt::from(text)),
        },
        None => Refusal {
            field: annotation_field(&format!(".containers[{:?}]", container.shown())),
            message: format!("an amount requires {gpu} of at least 1"),
        },
    })
}

/// Refuses preferences that the scheduler would not understand, which reads them with the same
/// function, and limits of shares (`aliquot.dev/gpumem-limit`, `aliquot.dev/gpucores-limit`) below
/// what a container requests. A pin that was written as a variable is checked, too.
pub(super) fn invalid_preferences(
    pod: &Value,
    request: &PodRequest<'_>,
    settings: &Settings,
) -> Vec<Refusal> {
    let annotations = &pod["metadata"]["annotations"];
    let refusal = |key: &str, message: String| Refusal {
        field: format!("metadata.annotations[{key:?}]"),
        message,
    };
    let burst = match Preferences::read(|key| annotations[key].as_str()) {
        Ok(preferences) => preferences.rules.burst,
        Err(errors) => {
            let errors = errors.into_iter();
            return errors.map(|error| refusal(error.key, error.why)).collect();
        }
    };
    let Some(burst) = burst else {
        return Vec::new();
    };
    let limits = [
        (
            Resource::Memory,
            burst::MEMORY_LIMIT,
            burst.memory.map(|limit| limit.0),
            "MiB",
        ),
        (
            Resource::Cores,
            burst::CORES_LIMIT,
            burst.cores.map(|limit| limit.0.into()),
            "percent",
        ),
    ];
    let limits = limits.into_iter().filter_map(|(resource, key, limit, unit)| {
        let requests = request.devices.iter().filter_map(|one| {
            let complete = one.written.completed(&settings.defaults);
            Some((one.container.shown(), complete.get(resource)?))
        });
        let (container, most) = requests.max_by_key(|(_, amount)| *amount)?;
        let limit = limit.filter(|limit| *limit < most)?;
        let name = settings.names.of(resource);
        let message = format!(
            "\"{limit}\" is below the {name} of container {container}; expected: at least {most} {unit}"
        );
        Some(refusal(key, message))
    });
    limits.collect()
}

/// Resources of ours in an ephemeral container, which can never be given any.
pub(super) fn in_ephemeral(container: &Container<'_>, settings: &Settings) -> Vec<Refusal> {
    let refused = |name| {
        let (list, text) = ResourceTexts::named(container, name).effective()?;
        Some(Refusal {
            field: field(container, list, name),
            message: format!(
                "{:?} in an ephemeral container, which cannot get GPUs; expected: no {}",
                Excerpt::from(text),
                Excerpt::from(name)
            ),
        })
    };
    let names = names(container, settings).into_iter();
    names.filter_map(refused).collect()
}

/// Amounts of a share that Kubernetes' resize would change. It refuses them, too, but names no command
/// that does it. Nothing changes the number of GPUs or the priority.
pub(super) fn resized(review: &PodReview<'_>, settings: &Settings) -> Vec<Refusal> {
    let PodReview { pod, old_pod, .. } = *review;
    // Each pod with a share has got our scheduler.
    if old_pod["spec"]["schedulerName"] != settings.scheduler_name {
        return Vec::new();
    }
    let name = Excerpt::from(pod["metadata"]["name"].as_str().unwrap_or_default());
    let namespace = Excerpt::from(review.namespace);
    let (after, before) = (pod::containers(pod), pod::containers(old_pod));
    let mut refusals = Vec::new();
    // Kubernetes refuses other containers and another order itself.
    let same = after.iter().zip(&before);
    for (container, old) in same.filter(|(container, old)| container.name() == old.name()) {
        for (flag, resource) in AMOUNTS {
            let resource = settings.names.of(resource);
            let Some((list, new)) = ResourceTexts::named(container, resource).effective() else {
                continue;
            };
            let old = ResourceTexts::named(old, resource).effective();
            let old = old.map_or("", |(_, text)| text);
            if quantity::whole(old) == quantity::whole(new) {
                continue;
            }
            let (old, new) = (Excerpt::from(old), Excerpt::from(new));
            refusals.push(Refusal {
                field: field(container, list, resource),
                message: format!(
                    "{new:?} differs from {old:?}, and Kubernetes resizes only cpu and memory; expected: kubectl aliquot resize pod/{name} -n {namespace} -c {} --{flag} {new}",
                    container.shown()
                ),
            });
        }
    }
    refusals
}

/// Counts of instances that no GPU model has, and more than one where a container may have one
/// share only.
fn refused_counts(
    container: &Container<'_>,
    request: &ContainerRequest<'_>,
    settings: &Settings,
) -> Vec<Refusal> {
    let gpus = request.written.get(Resource::Gpu);
    let usual = gpus.map(|count| (settings.names.of(Resource::Gpu), count));
    let others = request
        .others
        .iter()
        .map(|(name, count)| (*name, u64::from(*count)));
    let refused = |(name, count): (&str, u64)| {
        let (list, text) = ResourceTexts::named(container, name).effective()?;
        let text = Excerpt::from(text);
        let message = if count > 0 && name.starts_with(mig::RESOURCES) && !mig::is_known(name) {
            format!(
                "{text:?} instances of a profile that the scheduler does not know; expected: {}PROFILE of a GPU model in NVIDIA's MIG user guide, as `nvidia-smi mig -lgip` prints it with '.' for '+', such as {}1g.10gb",
                mig::RESOURCES,
                mig::RESOURCES
            )
        } else if count > 1 && settings.strict.iter().any(|strict| strict == name) {
            format!("{text:?} exceeds the limit of one share per container; expected: 1")
        } else {
            return None;
        };
        let field = field(container, list, name);
        Some(Refusal { field, message })
    };
    others.chain(usual).filter_map(refused).collect()
}
