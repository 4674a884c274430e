//! Step 1 for isolation: ways in which a pod with a share could reach around it.
//!
//! Fed by: pods in namespaces where escape is not allowed.
//! Must not: judge pods without a share. It cannot see what a
//! persistent volume claim mounts: a review makes no outgoing call.

use aliquot_core::escape::{self, CAPABILITIES, Closed, HARMLESS, ROOT, is_one_of};
use serde_json::Value;

use super::Refusal;
use super::pod::{Container, Kind, items};
use crate::settings::Settings;

/// Every way around the share. `asks` tells which containers have one.
pub(super) fn refusals<'a>(
    pod: &Value,
    all: &[Container<'a>],
    asks: impl Fn(&Container<'a>) -> bool,
    settings: &Settings,
) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    if pod["spec"]["hostPID"] == true {
        refusals.push(refusal("spec.hostPID".to_owned(), "true", "false"));
    }
    let volumes = items(&pod["spec"]["volumes"]).iter().enumerate();
    refusals.extend(volumes.filter_map(|(index, volume)| host_path(all, index, volume, settings)));
    for container in all {
        refusals.extend(security_context(container));
        if asks(container) {
            refusals.extend(mounts(container));
        }
    }
    refusals
}

/// What a container's own security context opens.
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
            let without = match container.kind {
                Kind::Ephemeral => "none of these (kubectl debug --profile=baseline)",
                Kind::Init | Kind::App => &format!("none of {}", CAPABILITIES.join(", ")),
            };
            let field = field(&format!("capabilities.add[{index}]"));
            refusals.push(refusal(field, &format!("{capability:?}"), without));
        }
    }
    refusals
}

/// It reaches every GPU of its node whatever its environment says, being as good as root there:
/// privileged, with a capability of root's, or writing where root of the node reads, as device
/// plugins do. Devices below `/dev` are not among these: a mount opens none.
pub(super) fn is_above(pod: &Value, container: &Container<'_>, settings: &Settings) -> bool {
    let context = &container.raw["securityContext"];
    let mut added = items(&context["capabilities"]["add"]).iter();
    let mut volumes = items(&pod["spec"]["volumes"]).iter();
    context["privileged"] == true
        || added.any(|name| name.as_str().is_some_and(|name| is_one_of(&ROOT, name)))
        || volumes.any(|volume| {
            let path = volume["hostPath"]["path"].as_str().unwrap_or(HARMLESS);
            let agent = settings.agent_paths.iter().map(String::as_str);
            is_written(std::slice::from_ref(container), volume) && escape::is_roots(path, agent)
        })
}

fn host_path(
    all: &[Container<'_>],
    index: usize,
    volume: &Value,
    settings: &Settings,
) -> Option<Refusal> {
    let source = volume.get("hostPath").filter(|source| !source.is_null())?;
    let host_path = source["path"].as_str().unwrap_or_default();
    let kind = source["type"].as_str().unwrap_or_default();
    let agent = settings.agent_paths.iter().map(String::as_str);
    let field = |name: &str| format!("spec.volumes[{index}].hostPath.{name}");
    let away = |from: &str| format!("a path neither above nor below {from}");
    let (name, value, accepted) =
        match escape::host_path(host_path, kind, is_written(all, volume), agent)? {
            Closed::Device => ("type", kind, "no device".to_owned()),
            Closed::Overlaps(closed) => ("path", host_path, away(closed)),
            Closed::Written(closed) => {
                let reading = "or readOnly: true at each of its mounts";
                ("path", host_path, format!("{}, {reading}", away(closed)))
            }
        };
    Some(refusal(field(name), &format!("{value:?}"), &accepted))
}

/// One of these containers mounts the volume otherwise than for reading.
fn is_written(containers: &[Container<'_>], volume: &Value) -> bool {
    containers.iter().any(|container| {
        let mut mounts = items(&container.raw["volumeMounts"]).iter();
        mounts.any(|mount| mount["name"] == volume["name"] && mount["readOnly"] != true)
    })
}

/// Volumes and devices laid over, above or into the files of ours.
fn mounts(container: &Container<'_>) -> Vec<Refusal> {
    [
        ("volumeMounts", "mountPath"),
        ("volumeDevices", "devicePath"),
    ]
    .into_iter()
    .flat_map(|(list, key)| {
        let entries = items(&container.raw[list]).iter().enumerate();
        entries.filter_map(move |(index, entry)| {
            let at = entry[key].as_str()?;
            let ours = escape::hides(at)?;
            let field = format!("{}.{list}[{index}].{key}", container.field());
            let accepted = format!("a path neither above nor below {ours}");
            Some(refusal(field, &format!("{at:?}"), &accepted))
        })
    })
    .collect()
}

fn refusal(field: String, value: &str, accepted: &str) -> Refusal {
    Refusal {
        field,
        message: format!(
            "{value} lets a pod reach around its GPU share; accepted: {accepted}, or a namespace \
             where the administrator allows it"
        ),
    }
}
