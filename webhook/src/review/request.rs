//! What a pod requests, and of whom: its scheduler, and the devices in each container's `resources`
//! and in the pod's annotation, or why they are invalid. Annotations that only a scheduler may write
//! are removed first.
//!
//! Ranges and quantities are `aliquot_core::request`'s. Besides the five usual resources there are
//! others: MIG instances, and the names under which an administrator advertises renamed GPUs.

use aliquot_core::allocation::ALLOCATION;
use aliquot_core::request::{self, RequestError, Resource, Written, is_other};
use aliquot_core::request_annotation::{AnnotationError, REQUEST};
use aliquot_core::resize::RESIZE_STATUS;
use aliquot_core::{Excerpt, Preferences, RequestAnnotation, burst, hami, mig, quantity};
use serde_json::Value;

use crate::pod::{Container, Kind};
use crate::settings::Settings;
use crate::verdict::{Findings, Refusal};

/// Annotations that a scheduler alone writes: ours, or HAMi's.
pub const RESERVED: [&str; 10] = {
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

/// What the containers of a pod request.
pub(super) struct PodRequest<'a> {
    /// Those that request devices.
    pub(super) devices: Vec<DeviceRequest<'a>>,
    /// Those that request a share, or try to.
    asking: Vec<Container<'a>>,
    is_refused: bool,
}

impl<'a> PodRequest<'a> {
    /// No container requests devices of ours or tries to.
    pub(super) fn is_empty(&self) -> bool {
        self.devices.is_empty() && !self.is_refused
    }

    /// What this container requests, if it requests devices.
    pub(super) fn of(&self, container: &Container<'_>) -> Option<&DeviceRequest<'a>> {
        let mut devices = self.devices.iter();
        devices.find(|request| request.container.field() == container.field())
    }

    /// This container requests a share, or tries to.
    pub(super) fn asks(&self, container: &Container<'_>) -> bool {
        let mut asking = self.asking.iter();
        asking.any(|one| one.field() == container.field())
    }
}

/// A container that requests devices, and what it wrote.
pub(super) struct DeviceRequest<'a> {
    pub(super) container: Container<'a>,
    pub(super) written: Written,
    /// Other resources of ours that it names.
    pub(super) others: Vec<&'a str>,
}

impl DeviceRequest<'_> {
    /// The number of devices that it requests.
    pub(super) fn device_count(&self) -> u64 {
        let other = |name: &&str| {
            let (_, text) = ResourceTexts::named(&self.container, name).effective()?;
            quantity::whole(text).ok()
        };
        let others: u64 = self.others.iter().filter_map(other).sum();
        let usual = self.written.get(Resource::Gpu);
        others + usual.unwrap_or_else(|| u64::from(self.others.is_empty()))
    }
}

/// One of these containers requests a share, or tries to.
pub(super) fn any_asks(pod: &Value, containers: &[Container<'_>], settings: &Settings) -> bool {
    let Ok(annotated) = annotated(pod) else {
        return true;
    };
    let asks = |container: &Container<'_>| {
        let written = written(container, &annotated, settings);
        written.map_or(true, |written| written.requests_gpu(&settings.defaults))
            || asks_for_others(container, settings)
    };
    let mut lasting = containers.iter().filter(|c| c.kind != Kind::Ephemeral);
    lasting.any(asks)
}

/// The container requests a number of devices, so the kubelet asks a device plugin before it
/// starts. No plugin hands out memory, compute or a priority, and amounts of 0 reach none.
pub(super) fn counts_devices(container: &Container<'_>, settings: &Settings) -> bool {
    let usual = settings.names.of(Resource::Gpu);
    let mut names = std::iter::once(usual).chain(other_names(container, settings));
    names.any(|name| {
        let text = ResourceTexts::named(container, name).effective();
        text.is_some_and(|(_, text)| request::count(text).is_ok_and(|count| count > 0))
    })
}

/// The requests of a pod's containers, with a refusal for every error in them.
pub(super) fn read<'a>(
    pod: &Value,
    containers: &[Container<'a>],
    settings: &Settings,
    findings: &mut Findings,
) -> PodRequest<'a> {
    let (mut devices, mut asking, mut refusals) = (Vec::new(), Vec::new(), Vec::new());
    let annotated = annotated(pod).unwrap_or_else(|refusal| {
        refusals.push(refusal);
        RequestAnnotation::default()
    });
    for container in containers {
        if container.kind == Kind::Ephemeral {
            continue;
        }
        refusals.extend(differing_requests(container, settings));
        refusals.extend(invalid_counts(container, settings));
        let other = asks_for_others(container, settings);
        match written(container, &annotated, settings) {
            Ok(written) if other || written.requests_gpu(&settings.defaults) => {
                asking.push(*container);
                devices.push(DeviceRequest {
                    container: *container,
                    written,
                    others: other_names(container, settings),
                });
            }
            Ok(written) => refusals.extend(amount_without_gpu(container, &written, settings)),
            Err(errors) => {
                asking.push(*container);
                let errors = errors.iter();
                refusals.extend(errors.map(|error| refusal(container, error, settings)));
            }
        }
    }
    let is_refused = !refusals.is_empty();
    findings.refusals.extend(refusals);
    PodRequest {
        devices,
        asking,
        is_refused,
    }
}

fn written(
    container: &Container<'_>,
    annotated: &RequestAnnotation,
    settings: &Settings,
) -> Result<Written, Vec<RequestError>> {
    let own = Written::read(|resource| {
        Some(
            ResourceTexts::of(container, resource, settings)
                .effective()?
                .1,
        )
    })?;
    let read = own.or(&annotated.of(container.name()))?;
    Ok(if asks_for_others(container, settings) {
        read.with_other_resources()
    } else {
        read
    })
}

/// The values of one resource of one container, as written in limits and in requests.
pub(super) struct ResourceTexts<'a> {
    pub(super) limit: Option<&'a str>,
    pub(super) request: Option<&'a str>,
}

impl<'a> ResourceTexts<'a> {
    pub(super) fn of(container: &Container<'a>, resource: Resource, settings: &Settings) -> Self {
        Self::named(container, settings.names.of(resource))
    }

    pub(super) fn named(container: &Container<'a>, name: &str) -> Self {
        let text = |list: &str| {
            // The API server writes every quantity as a string.
            container.raw["resources"][list]
                .get(name)
                .map(|value| value.as_str().unwrap_or(""))
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

fn refusal(container: &Container<'_>, error: &RequestError, settings: &Settings) -> Refusal {
    let resource = error.resource();
    let name = settings.names.of(resource);
    let (list, text) = ResourceTexts::of(container, resource, settings)
        .effective()
        .unwrap_or(("limits", ""));
    let message = match error {
        RequestError::MemoryTwice => {
            let memory = settings.names.of(Resource::Memory);
            let text = Excerpt::from(text);
            format!("{text:?} cannot be combined with {memory}; expected: only one of the two")
        }
        other => other.to_string(),
    };
    Refusal {
        field: field(container, list, name),
        message,
    }
}

fn differing_requests(container: &Container<'_>, settings: &Settings) -> Vec<Refusal> {
    let five = Resource::ALL.map(|resource| settings.names.of(resource));
    let names = five.into_iter().chain(other_names(container, settings));
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
    let own = ResourceTexts::of(container, resource, settings);
    Some(match own.effective() {
        Some((list, text)) => Refusal {
            field: field(container, list, settings.names.of(resource)),
            message: format!("{:?} requires {gpu} of at least 1", Excerpt::from(text)),
        },
        None => Refusal {
            field: annotation_field(&format!(".containers[{:?}]", container.shown())),
            message: format!("an amount requires {gpu} of at least 1"),
        },
    })
}

/// Limits of shares (`aliquot.dev/gpumem-limit`, `aliquot.dev/gpucores-limit`) that are below what a
/// container requests.
pub(super) fn limits_below_requests(
    pod: &Value,
    request: &PodRequest<'_>,
    settings: &Settings,
) -> Vec<Refusal> {
    let annotations = &pod["metadata"]["annotations"];
    let preferences = Preferences::read(|key| annotations[key].as_str());
    // What cannot be read is refused for that.
    let Some(burst) = preferences.ok().and_then(|read| read.rules.burst) else {
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
        Some(Refusal {
            field: format!("metadata.annotations[{key:?}]"),
            message: format!(
                "\"{limit}\" is below the {name} of container {container}; expected: at least {most} {unit}"
            ),
        })
    });
    limits.collect()
}

/// Resources of ours in an ephemeral container, which can never be given any.
pub(super) fn in_ephemeral(container: &Container<'_>, settings: &Settings) -> Vec<Refusal> {
    let five = Resource::ALL.map(|resource| settings.names.of(resource));
    let all = five.into_iter().chain(other_names(container, settings));
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
    all.filter_map(refused).collect()
}

/// Other resources of ours that the container names, each once, in order.
fn other_names<'a>(container: &Container<'a>, settings: &Settings) -> Vec<&'a str> {
    let raw: &'a Value = container.raw;
    let lists = ["limits", "requests"].map(|list| raw["resources"][list].as_object());
    let keys = lists.into_iter().flatten().flat_map(|list| list.keys());
    let ours = keys
        .map(String::as_str)
        .filter(|name| is_other(name, &settings.extra));
    let mut names: Vec<&str> = ours.collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Name, list and value of each of them.
fn other_counts<'a>(
    container: &Container<'a>,
    settings: &Settings,
) -> impl Iterator<Item = (&'a str, &'static str, &'a str)> {
    let container = *container;
    let names = other_names(&container, settings).into_iter();
    names.filter_map(move |name| {
        let (list, text) = ResourceTexts::named(&container, name).effective()?;
        Some((name, list, text))
    })
}

/// The container requests some of them, or tries to. No default fills anything in for these.
fn asks_for_others(container: &Container<'_>, settings: &Settings) -> bool {
    other_counts(container, settings).any(|(_, _, text)| request::count(text) != Ok(0))
}

/// Invalid counts, and more than one where a container may have one share only.
fn invalid_counts(container: &Container<'_>, settings: &Settings) -> Vec<Refusal> {
    let invalid = |(name, list, text): (&str, &str, &str)| {
        let message = match request::count(text) {
            Err(error) => error.to_string(),
            Ok(count) if count > 0 && name.starts_with(mig::RESOURCES) && !mig::is_known(name) => {
                let text = Excerpt::from(text);
                format!(
                    "{text:?} instances of a profile that the scheduler does not know; expected: {}PROFILE of a GPU model in NVIDIA's MIG user guide, as `nvidia-smi mig -lgip` prints it with '.' for '+', such as {}1g.10gb",
                    mig::RESOURCES,
                    mig::RESOURCES
                )
            }
            Ok(count) if count > 1 && settings.strict.iter().any(|strict| strict == name) => {
                let text = Excerpt::from(text);
                format!("{text:?} exceeds the limit of one share per container; expected: 1")
            }
            Ok(_) => return None,
        };
        let field = field(container, list, name);
        Some(Refusal { field, message })
    };
    let usual = settings.names.of(Resource::Gpu);
    let usual = ResourceTexts::named(container, usual)
        .effective()
        .map(|(list, text)| (usual, list, text))
        .filter(|(.., text)| request::count(text).is_ok());
    other_counts(container, settings)
        .chain(usual)
        .filter_map(invalid)
        .collect()
}
