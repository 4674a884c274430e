//! Ways in which a pod with a share could bypass it. Pods without a share are not checked, and a
//! review cannot see what a persistent volume claim mounts: it makes no outgoing call.

use std::collections::BTreeSet;

use aliquot_core::Excerpt;
use aliquot_core::escape::{self, CAPABILITIES, ClosedPath, is_one_of};
use aliquot_core::preferences::MODE;
use serde_json::Value;

use super::request::PodRequest;
use crate::pod::{self, Container, Kind, items};
use crate::settings::Settings;
use crate::verdict::{Findings, Refusal};

/// Refuses a node that bypasses the scheduler, and every way to bypass the share that the namespace
/// does not allow.
pub(super) fn check(
    pod: &Value,
    namespace: &str,
    containers: &[Container<'_>],
    request: &PodRequest<'_>,
    settings: &Settings,
    findings: &mut Findings,
) {
    let refusals = &mut findings.refusals;
    refusals.extend(preset_node(pod, &settings.scheduler_name.as_str().into()));
    if settings.escape_allowed.contains(namespace) {
        return;
    }
    if pod["spec"]["hostPID"] == true {
        refusals.push(refusal("spec.hostPID".to_owned(), "true", "false"));
    }
    let written: BTreeSet<&str> = containers.iter().flat_map(Container::written).collect();
    let volumes = items(&pod["spec"]["volumes"]).iter().enumerate();
    refusals
        .extend(volumes.filter_map(|(index, volume)| host_path(&written, index, volume, settings)));
    for container in containers {
        refusals.extend(security_context(container));
        if request.of(container).is_some() {
            refusals.extend(mounts(container));
        }
    }
    let modes = pod["metadata"]["annotations"][MODE.aliquot].as_str();
    if modes.is_some_and(|modes| modes.split(',').any(|mode| mode.trim() == "mps")) {
        let clients = containers.iter().filter(|one| request.of(one).is_some());
        for container in clients.filter(|one| may_be_root(pod, one)) {
            findings.warnings.push(format!(
                "container {} may run as root: root can harm the other MPS clients of its GPU; expected: runAsUser or runAsNonRoot in its securityContext, or spec.hostUsers: false",
                container.shown()
            ));
        }
    }
}

/// Whether the container may run as root of its node: neither another user nor a user namespace is
/// certain.
fn may_be_root(pod: &Value, container: &Container<'_>) -> bool {
    let contexts = [
        &container.raw["securityContext"],
        &pod["spec"]["securityContext"],
    ];
    let own = |key: &str| {
        let mut set = contexts.iter().map(|context| &context[key]);
        set.find(|value| !value.is_null())
    };
    let user = own("runAsUser").and_then(Value::as_u64);
    pod["spec"]["hostUsers"] != false
        && user.unwrap_or(0) == 0
        && own("runAsNonRoot").and_then(Value::as_bool) != Some(true)
}

/// The same for a pod of another scheduler that requests a share: it gets none.
pub(super) fn check_of_other_scheduler(pod: &Value, settings: &Settings, findings: &mut Findings) {
    let named = pod["spec"]["schedulerName"].as_str().unwrap_or_default();
    let scheduler = Excerpt::from(named);
    findings.warnings.push(format!(
        "spec.schedulerName is {scheduler:?}: the pod gets no share, and nodes that Aliquot serves refuse it; expected: {:?}, or a node with another device plugin",
        settings.scheduler_name
    ));
    findings.refusals.extend(preset_node(pod, &scheduler));
}

/// A pod that names its node bypasses every scheduler, also the one that it names.
fn preset_node(pod: &Value, scheduler: &Excerpt) -> Option<Refusal> {
    let node = Excerpt::from(pod::named_node(pod)?);
    Some(Refusal {
        field: "spec.nodeName".to_owned(),
        message: format!(
            "{node:?} bypasses scheduler {scheduler}, which allocates the pod's GPU share; \
             expected: no nodeName (use nodeSelector or affinity to choose nodes)"
        ),
    })
}

/// What a container's own security context gives access to.
pub(super) fn security_context(container: &Container<'_>) -> Vec<Refusal> {
    let context = &container.raw["securityContext"];
    let field = |rest: &str| format!("{}.securityContext.{rest}", container.field());
    let mut refusals = Vec::new();
    if context["privileged"] == true {
        refusals.push(refusal(field("privileged"), "true", "false"));
    }
    if context["procMount"] == "Unmasked" {
        refusals.push(refusal(field("procMount"), "\"Unmasked\"", "\"Default\""));
    }
    let added = items(&context["capabilities"]["add"]).iter().enumerate();
    for (index, capability) in added.filter_map(|(index, name)| Some((index, name.as_str()?))) {
        if is_one_of(&CAPABILITIES, capability) {
            let mut expected = format!("none of {}", CAPABILITIES.join(", "));
            if container.kind == Kind::Ephemeral {
                expected += " (use kubectl debug --profile=baseline)";
            }
            let field = field(&format!("capabilities.add[{index}]"));
            refusals.push(refusal(field, &quoted(capability), &expected));
        }
    }
    refusals
}

/// The pod's host paths that these ephemeral containers would write to.
pub(super) fn written_host_paths(
    pod: &Value,
    added: &[Container<'_>],
    settings: &Settings,
) -> Vec<Refusal> {
    let written: BTreeSet<&str> = added.iter().flat_map(Container::written).collect();
    let volumes = items(&pod["spec"]["volumes"]).iter().enumerate();
    volumes
        .filter(|(_, volume)| is_among(&written, volume))
        .filter_map(|(index, volume)| host_path(&written, index, volume, settings))
        .collect()
}

fn is_among(names: &BTreeSet<&str>, volume: &Value) -> bool {
    let name = volume["name"].as_str();
    name.is_some_and(|name| names.contains(name))
}

fn host_path(
    written: &BTreeSet<&str>,
    index: usize,
    volume: &Value,
    settings: &Settings,
) -> Option<Refusal> {
    let source = volume.get("hostPath").filter(|source| !source.is_null())?;
    let host_path = source["path"].as_str().unwrap_or_default();
    let kind = source["type"].as_str().unwrap_or_default();
    let agent = settings.agent_paths.iter().map(String::as_str);
    let is_written = is_among(written, volume);
    let field = |name: &str| format!("spec.volumes[{index}].hostPath.{name}");
    let (name, value, expected) = match escape::host_path(host_path, kind, is_written, agent)? {
        ClosedPath::Device => ("type", kind, "a type that is not a device".to_owned()),
        ClosedPath::Overlaps(closed) => ("path", host_path, outside(closed)),
        ClosedPath::Written(closed) => {
            let reading = "or readOnly: true on each of its mounts";
            ("path", host_path, format!("{}, {reading}", outside(closed)))
        }
    };
    Some(refusal(field(name), &quoted(value), &expected))
}

fn outside(path: &str) -> String {
    format!("a path that is neither inside {path} nor one of its parents")
}

/// Refuses volumes and devices that are mounted over, above or into Aliquot's files in the
/// container.
fn mounts(container: &Container<'_>) -> Vec<Refusal> {
    [
        ("volumeMounts", "mountPath"),
        ("volumeDevices", "devicePath"),
    ]
    .into_iter()
    .flat_map(|(list, key)| {
        let entries = items(&container.raw[list]).iter().enumerate();
        entries.filter_map(move |(index, entry)| {
            let path = entry[key].as_str()?;
            let ours = escape::shadows(path)?;
            let field = format!("{}.{list}[{index}].{key}", container.field());
            Some(refusal(field, &quoted(path), &outside(ours)))
        })
    })
    .collect()
}

fn quoted(value: &str) -> String {
    format!("{:?}", Excerpt::from(value))
}

fn refusal(field: String, value: &str, expected: &str) -> Refusal {
    Refusal {
        field,
        message: format!(
            "{value} would let the pod bypass its GPU share; expected: {expected}, or a namespace \
             where the administrator allows it"
        ),
    }
}
