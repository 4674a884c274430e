//! Completes a pod with a share: the values that its containers left out, in the form that the
//! settings choose (limits and requests alike, or the pod's annotation), its scheduler and runtime
//! class; and leaves space for its allocation.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_core::allocation::MAX_ANNOTATION_BYTES;
use aliquot_core::request::{DEFAULTED, Fill, Resource};
use aliquot_core::request_annotation::REQUEST;
use aliquot_core::{Excerpt, RequestAnnotation};
use serde_json::{Value, json};

use super::request::{DeviceRequest, PodRequest, ResourceTexts, annotated};
use crate::pod::{Container, Kind};
use crate::settings::{RequestForm, Settings};
use crate::verdict::{Findings, PodEditor, Refusal};

/// Bytes that must stay free for the allocation.
const ALLOCATION_BYTES: usize = 16 << 10;

/// MiB; less than any CUDA context takes.
const LEAST_USEFUL: u64 = 64;

type Defaulted = BTreeMap<String, BTreeMap<String, String>>;

pub(super) fn fill(request: &PodRequest<'_>, settings: &Settings, findings: &mut Findings) {
    fill_resources(&request.devices, settings, findings);
    write(&request.devices, settings, findings);
    set_scheduler(&mut findings.editor, settings);
    let too_large = too_large(findings.editor.pod());
    findings.refusals.extend(too_large);
}

/// Writes the missing values, and warns of those in each container. [`DEFAULTED`] records them for
/// the scheduler, and for whoever never sees a warning. A missing priority is low, which surprises
/// nobody.
fn fill_resources(requests: &[DeviceRequest<'_>], settings: &Settings, findings: &mut Findings) {
    let Findings {
        editor, warnings, ..
    } = findings;
    let mut defaulted = Defaulted::new();
    for request in requests {
        let container = &request.container;
        let fills = request.written.fills(&settings.defaults);
        let mut defaults = Vec::new();
        for fill in &fills {
            defaults.extend(warning(fill, settings));
            let of_container = defaulted.entry(container.name().to_owned()).or_default();
            let name = settings.names.of(fill.resource);
            of_container.insert(name.to_owned(), fill.value.to_string());
        }
        if !defaults.is_empty() {
            let line = defaults.join("; ");
            warnings.push(match requests.len() {
                1 => line,
                _ => format!("container {}: {line}", container.shown()),
            });
        }
        if let Some(memory) = request.written.get(Resource::Memory)
            && memory < LEAST_USEFUL
        {
            let name = settings.names.of(Resource::Memory);
            warnings.push(format!(
                "container {}: {name} is {memory} MiB, in which no CUDA program fits; expected: whole MiB without a suffix (3000, because Kubernetes reads 3000m as 3)",
                container.shown()
            ));
        }
    }
    if !defaulted.is_empty() {
        annotate(editor, defaulted);
    }
}

/// Writes the complete requests in the form of the settings, and in no other. The count is always a
/// resource: the kubelet gives devices for it.
fn write(requests: &[DeviceRequest<'_>], settings: &Settings, findings: &mut Findings) {
    let Findings {
        editor,
        warnings,
        refusals,
    } = findings;
    let before = annotated(editor.pod()).unwrap_or_default();
    let mut after = RequestAnnotation::default();
    for request in requests {
        let container = &request.container;
        let complete = request.written.completed(&settings.defaults);
        let is_resource = |resource| match resource {
            Resource::Gpu => true,
            Resource::Priority if settings.retain_priority && container.kind == Kind::App => true,
            _ => settings.request_as == RequestForm::Resources,
        };
        for resource in Resource::ALL {
            let name = settings.names.of(resource);
            if is_resource(resource) {
                write_resource(editor, container, name, complete.get(resource));
            } else {
                remove(editor, container, name);
            }
        }
        for name in request.others.keys() {
            write_resource(editor, container, name, None);
        }
        after.add(container.name(), &complete);
    }
    let asking: BTreeSet<&str> = requests.iter().map(|one| one.container.name()).collect();
    let named = before.containers.keys();
    let gone = named.filter(|name| !asking.contains(name.as_str()));
    warnings.extend(gone.map(|name| {
        let name = Excerpt::from(name.as_str());
        format!("annotation {REQUEST}: {name:?} removed: no container of that name requests a GPU")
    }));
    let path = ["metadata", "annotations", REQUEST];
    if settings.request_as == RequestForm::Resources || after.containers.is_empty() {
        editor.remove(&path);
        return;
    }
    match after.encode() {
        Ok(text) => editor.set(&path, Value::String(text)),
        Err(error) => refusals.push(Refusal {
            field: "metadata.annotations".to_owned(),
            message: error.to_string(),
        }),
    }
}

/// What the container wrote stays as it is. Requests equal limits, also where it wrote only one of the
/// two, and both are `filled` where it wrote neither.
fn write_resource(
    editor: &mut PodEditor,
    container: &Container<'_>,
    name: &str,
    filled: Option<u64>,
) {
    let own = ResourceTexts::named(container, name);
    let text = own.effective().map(|(_, text)| text.to_owned());
    let Some(text) = text.or_else(|| filled.map(|number| number.to_string())) else {
        return;
    };
    let index = container.index.to_string();
    for (list, written) in [("limits", own.limit), ("requests", own.request)] {
        if written.is_none() {
            let path = path(container, &index, list, name);
            editor.set(&path, Value::from(text.as_str()));
        }
    }
}

fn remove(editor: &mut PodEditor, container: &Container<'_>, name: &str) {
    let index = container.index.to_string();
    for list in ["limits", "requests"] {
        editor.remove(&path(container, &index, list, name));
    }
}

fn path<'p>(
    container: &Container<'_>,
    index: &'p str,
    list: &'p str,
    name: &'p str,
) -> [&'p str; 6] {
    let kind = container.kind.list();
    ["spec", kind, index, "resources", list, name]
}

/// Adds to what an earlier review of the same pod wrote.
fn annotate(editor: &mut PodEditor, added: Defaulted) {
    let before = editor.pod()["metadata"]["annotations"][DEFAULTED].as_str();
    let mut all: Defaulted = before
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default();
    for (container, values) in added {
        all.entry(container).or_default().extend(values);
    }
    let value = Value::String(json!(all).to_string());
    editor.set(&["metadata", "annotations", DEFAULTED], value);
}

fn warning(fill: &Fill, settings: &Settings) -> Option<String> {
    let value = fill.value;
    let percentage = settings.names.of(Resource::MemoryPercentage);
    let (resource, default) = match fill.resource {
        Resource::Gpu => (Resource::Gpu, value.to_string()),
        Resource::Memory => (
            Resource::Memory,
            format!("{value} MiB (set {percentage}: 100 for a whole GPU)"),
        ),
        Resource::MemoryPercentage => (
            Resource::Memory,
            format!("{percentage}: {value}, the GPU's whole memory"),
        ),
        Resource::Cores => (
            Resource::Cores,
            match value {
                0 => "0 (compute is neither reserved nor limited)".to_owned(),
                100 => "100 percent (no other container shares the GPU)".to_owned(),
                _ => format!("{value} percent of a GPU's compute"),
            },
        ),
        Resource::Priority => return None,
    };
    let name = settings.names.of(resource);
    Some(format!("{name} not set, defaulting to {default}"))
}

/// Sets the scheduler, and the runtime class where the pod names none.
fn set_scheduler(editor: &mut PodEditor, settings: &Settings) {
    editor.set(
        &["spec", "schedulerName"],
        Value::from(settings.scheduler_name.as_str()),
    );
    if let Some(class) = &settings.runtime_class
        && editor.pod()["spec"]["runtimeClassName"].is_null()
    {
        editor.set(&["spec", "runtimeClassName"], Value::from(class.as_str()));
    }
}

/// The API server does not check the size of annotations that a Binding adds, but it does at the
/// pod's next status update: without space the pod could be bound and never run.
fn too_large(pod: &Value) -> Option<Refusal> {
    let annotations = pod["metadata"]["annotations"].as_object()?;
    let size = |(key, value): (&String, &Value)| key.len() + value.as_str().map_or(0, str::len);
    let total: usize = annotations.iter().map(size).sum();
    let most = MAX_ANNOTATION_BYTES - ALLOCATION_BYTES;
    (total > most).then(|| Refusal {
        field: "metadata.annotations".to_owned(),
        message: format!(
            "{total} bytes leave no space for the allocation; expected: at most {most} bytes"
        ),
    })
}
