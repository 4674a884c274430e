//! A Pod as the ledger sees it: what it asks for, what it is allocated, and whether it has
//! finished.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aliquot_core::allocation::ALLOCATION;
use aliquot_core::preferences::{self, PreferenceError};
use aliquot_core::request::{
    ContainerRequest, DEFAULTED, GpuRequest, InvalidResource, MAX_CONTAINERS,
    MAX_CONTAINERS_IN_ALL, RequestError, Resource,
};
use aliquot_core::request_annotation::{AnnotationError, REQUEST};
use aliquot_core::units::HostResources;
use aliquot_core::usage::{self, AllocatedUse};
use aliquot_core::{
    Allocation, ContainerDemand, Defaults, Demand, GpuUuid, Mib, ModelRules, Namespace, NodeName,
    PodUid, Preferences, RequestAnnotation, ResourceNames, Stage, quantity,
};
use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use thiserror::Error;

use crate::view::{self, ContainerView, PodView, stage};

/// On mirror pods, the API server's copies of static pods: the uid under which the kubelet runs the
/// static pod. On other pods any user may write it.
const CONFIG_HASH: &str = "kubernetes.io/config.hash";

/// The `schedulerName` of pods with a share, if the chart's values do not change it.
pub const SCHEDULER_NAME: &str = "aliquot-scheduler";
/// The scheduler that placeholders for missing GPUs name. There is none of this name, so they never
/// run.
pub const PLACEHOLDER_SCHEDULER: &str = "aliquot-placeholder";

/// The cluster's resource names and defaults.
#[derive(Clone, Debug)]
pub struct Settings {
    pub names: ResourceNames,
    /// Other GPU resources that renamed devices are advertised under; those of MIG
    /// instances are known by their names.
    pub extra: Vec<String>,
    pub defaults: Defaults,
    /// The `schedulerName` of the pods that our scheduler admits.
    pub scheduler_name: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            names: ResourceNames::default(),
            extra: Vec::new(),
            defaults: Defaults::default(),
            scheduler_name: SCHEDULER_NAME.to_owned(),
        }
    }
}

/// Why a pod's demand is invalid.
#[derive(Debug, Error)]
pub enum DemandError {
    #[error("container {container:?}, {resource}: {source}")]
    Resource {
        container: String,
        resource: String,
        source: RequestError,
    },
    #[error("annotation {REQUEST}: {0}")]
    Request(AnnotationError),
    /// Two containers have one name; the API server stores no such pod, and an allocation
    /// names containers.
    #[error("duplicate container name {0:?}; expected: a unique name for each container")]
    DuplicateContainer(String),
    #[error("{0} containers request GPUs; expected: at most {MAX_CONTAINERS} in a pod")]
    TooManyContainers(usize),
    #[error(
        "{0} containers; expected: at most {MAX_CONTAINERS_IN_ALL} in a pod that requests GPUs"
    )]
    TooManyContainersInAll(usize),
    #[error(transparent)]
    Preference(PreferenceError),
}

/// `metadata.uid`, empty for an object that was never stored.
pub fn uid(pod: &Pod) -> PodUid {
    pod.metadata.uid.as_deref().unwrap_or_default().into()
}

/// The uid under which the kubelet runs the pod: another one for static pods.
pub fn kubelet_uid(pod: &Pod) -> PodUid {
    let of_static = annotation(pod, CONFIG_HASH).filter(|_| is_mirror(pod));
    of_static.map_or_else(|| uid(pod), PodUid::from)
}

/// Whether it is a mirror pod, the kubelet's copy of a static pod: its node owns it.
pub fn is_mirror(pod: &Pod) -> bool {
    let spec = pod.spec.as_ref();
    view::is_mirror(&pod.metadata, spec.and_then(|spec| spec.node_name.as_ref()))
}

/// `metadata.namespace`, empty for an object that was never stored.
pub fn namespace(pod: &Pod) -> Namespace {
    pod.metadata.namespace.as_deref().unwrap_or_default().into()
}

pub fn node(pod: &Pod) -> Option<NodeName> {
    let name = pod.spec.as_ref()?.node_name.as_deref()?;
    (!name.is_empty()).then(|| name.into())
}

/// Whether the pod stands for missing GPUs and never runs.
pub fn is_placeholder(pod: &PodView) -> bool {
    pod.spec.scheduler_name.as_deref() == Some(PLACEHOLDER_SCHEDULER)
}

/// Whether the pod has finished (Succeeded, Failed).
pub fn is_finished(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

pub fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    let annotations = pod.metadata.annotations.as_ref()?;
    annotations.get(key).map(String::as_str)
}

/// Each container and when it runs: init containers in order, then app containers.
pub fn containers(pod: &Pod) -> impl Iterator<Item = (&Container, Stage)> {
    let specs = pod.spec.iter();
    let init = specs
        .clone()
        .flat_map(|spec| spec.init_containers.iter().flatten());
    let apps = specs.flat_map(|spec| &spec.containers);
    init.map(|c| (c, stage(c.restart_policy.as_deref())))
        .chain(apps.map(|c| (c, Stage::App)))
}

/// The name of each started container, by the runtime's container id: the status has
/// `containerd://<id>`.
pub fn names_by_id(pod: &Pod) -> BTreeMap<String, String> {
    let statuses = pod.status.iter().flat_map(|status| {
        let init = status.init_container_statuses.iter().flatten();
        let app = status.container_statuses.iter().flatten();
        let debug = status.ephemeral_container_statuses.iter().flatten();
        init.chain(app).chain(debug)
    });
    let known = statuses.filter_map(|status| {
        let (_, id) = status.container_id.as_deref()?.split_once("://")?;
        Some((id.to_owned(), status.name.clone()))
    });
    known.collect()
}

/// The pod's demand, defaults applied. [`Demand::requests_gpu`] says whether it asks for a share.
/// Limits count; requests where a limit is missing; the annotation where both are.
pub fn demand(pod: &PodView, settings: &Settings) -> Result<Demand, DemandError> {
    let mut priority = 1;
    let mut demands: Vec<ContainerDemand> = Vec::new();
    let mut resources = vec![settings.names.of(Resource::Gpu).into()];
    let filled = pod
        .annotation(DEFAULTED)
        .and_then(|text| serde_json::from_str(text).ok());
    let filled: Filled<'_> = filled.unwrap_or_default();
    let annotated = request_annotation(pod)?;
    let mut names = BTreeSet::new();
    for (container, stage) in pod.containers() {
        if !names.insert(&container.name) {
            return Err(DemandError::DuplicateContainer(container.name.clone()));
        }
        let written = container.resources.as_ref();
        let request = container_request(&container.name, written, &annotated, settings)?;
        if let Some(own) = request.written.get(Resource::Priority) {
            priority = priority.min(u8::try_from(own).unwrap_or(1));
        }
        demands.push(ContainerDemand {
            name: container.name.clone(),
            stage,
            requests: requests(
                &request,
                settings,
                filled.get(&*container.name),
                &mut resources,
            ),
        });
    }
    let asking = demands
        .iter()
        .filter(|one| !one.requests.is_empty())
        .count();
    if asking > MAX_CONTAINERS {
        return Err(DemandError::TooManyContainers(asking));
    }
    if asking > 0 && demands.len() > MAX_CONTAINERS_IN_ALL {
        return Err(DemandError::TooManyContainersInAll(demands.len()));
    }
    // The webhook admits any where no container asks; kube-scheduler also asks about a count of 0.
    let preferences = if asking == 0 {
        Preferences::default()
    } else {
        Preferences::read(|key| pod.annotation(key))
            .map_err(|mut errors| DemandError::Preference(errors.swap_remove(0)))?
    };
    Ok(Demand {
        namespace: pod.namespace(),
        resources,
        containers: demands,
        host: requested_host_resources(pod),
        priority,
        node_policy: preferences.node_policy,
        gpu_policy: preferences.gpu_policy,
        rules: preferences.rules,
    })
}

/// The part of the pod's request that its annotation has.
pub fn request_annotation(pod: &PodView) -> Result<RequestAnnotation, DemandError> {
    pod.annotation(REQUEST).map_or_else(
        || Ok(RequestAnnotation::default()),
        |text| RequestAnnotation::decode(text).map_err(DemandError::Request),
    )
}

/// The models that the pod accepts; `None` for any.
pub(crate) fn models(pod: &PodView) -> Option<Arc<ModelRules>> {
    preferences::models(|key| pod.annotation(key))
}

type Quantities = BTreeMap<String, Quantity>;

/// The webhook's list of defaulted values, by container and resource.
type Filled<'a> = BTreeMap<Cow<'a, str>, Defaulted<'a>>;
type Defaulted<'a> = BTreeMap<Cow<'a, str>, Cow<'a, str>>;

/// The container's requests: under the main resource, then under others by name.
fn requests(
    ContainerRequest { written, others }: &ContainerRequest<'_>,
    settings: &Settings,
    filled: Option<&Defaulted<'_>>,
    resources: &mut Vec<Arc<str>>,
) -> Vec<GpuRequest> {
    let mut requests: Vec<GpuRequest> = written.request(&settings.defaults).into_iter().collect();
    for request in &mut requests {
        let was_filled = |resource| {
            let value = filled.and_then(|filled| filled.get(settings.names.of(resource)));
            value.is_some_and(|value| {
                value
                    .parse()
                    .is_ok_and(|value| written.get(resource) == Some(value))
            })
        };
        let memory = [Resource::Memory, Resource::MemoryPercentage];
        request.written.memory &= !memory.into_iter().any(was_filled);
        request.written.cores &= !was_filled(Resource::Cores);
    }
    for (&name, &count) in others.iter().filter(|(_, count)| **count > 0) {
        let known = resources.iter().position(|known| **known == *name);
        let place = known.unwrap_or_else(|| {
            resources.push(name.into());
            resources.len() - 1
        });
        // More resources than a byte can index: the last one then serves no pod.
        let place = u8::try_from(place).unwrap_or(u8::MAX);
        requests.push(written.request_under(place, count));
    }
    requests
}

/// Limits, then requests.
pub(crate) fn amounts(resources: Option<&ResourceRequirements>) -> [Option<&Quantities>; 2] {
    [
        resources.and_then(|r| r.limits.as_ref()),
        resources.and_then(|r| r.requests.as_ref()),
    ]
}

/// What a container of this name and with these resources asks for, of a pod with this annotation.
pub fn container_request<'a>(
    container: &str,
    resources: Option<&'a ResourceRequirements>,
    annotated: &RequestAnnotation,
    settings: &Settings,
) -> Result<ContainerRequest<'a>, DemandError> {
    let all = amounts(resources).into_iter().flatten().flatten();
    let texts = all.map(|(name, quantity)| (name.as_str(), quantity.0.as_str()));
    let annotated = annotated.of(container);
    let read = ContainerRequest::read(texts, &annotated, &settings.names, &settings.extra);
    read.map_err(|mut errors| {
        let InvalidResource { name, source } = errors.swap_remove(0);
        DemandError::Resource {
            container: container.to_owned(),
            resource: name,
            source,
        }
    })
}

/// The CPU and memory that the pod requests over its life, by kube-scheduler's own rule
/// (component-helpers, `PodRequests`): that of its containers, plus the pod's overhead; requests of
/// the whole pod replace the sum.
pub fn requested_host_resources(pod: &PodView) -> HostResources {
    let requests = pod.containers().map(|(container, stage)| {
        let resources = container.resources.as_ref();
        (
            stage,
            host_resources(resources.and_then(|r| r.requests.as_ref())),
        )
    });
    let mut sum = usage::over_life(requests, HostResources::plus, larger);
    let whole = pod.spec.resources.as_ref();
    if let Some(requests) = whole.and_then(|whole| whole.requests.as_ref()) {
        let whole = host_resources(Some(requests));
        if requests.contains_key("cpu") {
            sum.cpu = whole.cpu;
        }
        if requests.contains_key("memory") {
            sum.memory = whole.memory;
        }
    }
    sum.plus(host_resources(pod.spec.overhead.as_ref()))
}

/// CPU and memory. Missing and invalid quantities count as 0; the API server admits none.
pub fn host_resources(amounts: Option<&Quantities>) -> HostResources {
    let get = |name| amounts?.get(name).map(|quantity| quantity.0.as_str());
    HostResources {
        cpu: get("cpu").and_then(quantity::milli_cpu).unwrap_or_default(),
        memory: get("memory").and_then(quantity::mib).unwrap_or_default(),
    }
}

fn larger(a: HostResources, b: HostResources) -> HostResources {
    HostResources {
        cpu: a.cpu.max(b.cpu),
        memory: a.memory.max(b.memory),
    }
}

/// What a bound pod is allocated, by its allocation annotation; `None` for a pod that is not bound
/// or has none. An allocation counts only together with a node: it is written by the Binding alone.
pub fn allocated(pod: &PodView, settings: &Settings) -> Option<(NodeName, AllocatedUse)> {
    let node = pod.node()?;
    let text = pod.annotation(ALLOCATION)?;
    let allocated_use = match Allocation::decode(text) {
        Ok(allocation) if allocation.node == node => {
            AllocatedUse::Known(usage::effective(&allocation, pod.stages()))
        }
        // Of another release, damaged, or of another node: fail closed.
        Ok(_) | Err(_) if is_admitted(pod, settings) => AllocatedUse::Unreadable,
        Ok(_) | Err(_) => AllocatedUse::Unproven,
    };
    Some((node, allocated_use))
}

/// The most memory that a pod may use of each device on which it may use more than it is allocated.
pub fn memory_limits(pod: &PodView) -> BTreeMap<GpuUuid, Mib> {
    let allocation = pod.annotation(ALLOCATION).map(Allocation::decode);
    let Some(Ok(mut allocation)) = allocation else {
        return BTreeMap::new();
    };
    let effective = |allocation: &Allocation| usage::effective(allocation, pod.stages());
    let requested = effective(&allocation);
    let containers = allocation.containers.values_mut();
    for grant in containers.chain(allocation.init.values_mut()).flatten() {
        grant.memory = grant.memory_limit();
    }
    let limits = effective(&allocation);
    let above = limits.iter().filter(|(gpu, limit)| {
        let request = requested.get(gpu).map_or(Mib(0), |used| used.memory);
        limit.memory > request
    });
    above
        .map(|(gpu, limit)| (gpu.clone(), limit.memory))
        .collect()
}

/// Whether our scheduler admitted this bound pod: the pod names it and requests devices (or its
/// request is invalid). Both are in the spec, where nobody changes them later, and the webhook
/// refuses a node beside them. A pod that only names our scheduler proves nothing: anybody's does.
fn is_admitted(pod: &PodView, settings: &Settings) -> bool {
    let unannotated = RequestAnnotation::default();
    let requests = |container: &ContainerView| {
        let (name, resources) = (&*container.name, container.resources.as_ref());
        let request = container_request(name, resources, &unannotated, settings);
        request.map_or(true, |request| request.asks(&settings.defaults))
    };
    pod.spec.scheduler_name.as_ref() == Some(&settings.scheduler_name)
        && pod.containers().any(|(container, _)| requests(container))
}

#[cfg(test)]
#[path = "pod_tests.rs"]
mod tests;
