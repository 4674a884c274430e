//! Ways in which a pod with a share could bypass it. Pods without a share are not checked, and a
//! review cannot see what a persistent volume claim mounts: it makes no outgoing call.

use aliquot_core::escape::{
    self, CAPABILITIES, ClosedPath, ROOT_CAPABILITIES, SHARED_MEMORY, is_one_of,
};
use serde_json::Value;

use super::Refusal;
use super::pod::{Container, Kind, items};
use crate::settings::Settings;

/// Every way to bypass the share. `has_share` tells which containers have one.
pub(super) fn refusals<'a>(
    pod: &Value,
    all: &[Container<'a>],
    has_share: impl Fn(&Container<'a>) -> bool,
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
        if has_share(container) {
            refusals.extend(mounts(container));
        }
    }
    refusals
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
            refusals.push(refusal(field, &format!("{capability:?}"), &expected));
        }
    }
    refusals
}

/// The container reaches every GPU of its node whatever its environment says, being as good as
/// root there: privileged, with a capability of root's, or with write access where root of the
/// node reads, as device plugins have. Devices below `/dev` are not among these: a mount alone
/// gives no access to them.
pub(super) fn is_root_equivalent(
    pod: &Value,
    container: &Container<'_>,
    settings: &Settings,
) -> bool {
    let context = &container.raw["securityContext"];
    let mut added = items(&context["capabilities"]["add"]).iter();
    let mut volumes = items(&pod["spec"]["volumes"]).iter();
    context["privileged"] == true
        || added.any(|name| {
            name.as_str()
                .is_some_and(|name| is_one_of(&ROOT_CAPABILITIES, name))
        })
        || volumes.any(|volume| {
            let path = volume["hostPath"]["path"].as_str().unwrap_or(SHARED_MEMORY);
            let agent = settings.agent_paths.iter().map(String::as_str);
            is_written(std::slice::from_ref(container), volume) && escape::grants_root(path, agent)
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
    let (name, value, expected) =
        match escape::host_path(host_path, kind, is_written(all, volume), agent)? {
            ClosedPath::Device => ("type", kind, "a type that is not a device".to_owned()),
            ClosedPath::Overlaps(closed) => ("path", host_path, outside(closed)),
            ClosedPath::Written(closed) => {
                let reading = "or readOnly: true on each of its mounts";
                ("path", host_path, format!("{}, {reading}", outside(closed)))
            }
        };
    Some(refusal(field(name), &format!("{value:?}"), &expected))
}

fn outside(path: &str) -> String {
    format!("a path that is neither inside {path} nor one of its parents")
}

/// One of these containers mounts the volume with write access.
fn is_written(containers: &[Container<'_>], volume: &Value) -> bool {
    containers.iter().any(|container| {
        let mut mounts = items(&container.raw["volumeMounts"]).iter();
        mounts.any(|mount| mount["name"] == volume["name"] && mount["readOnly"] != true)
    })
}

/// Volumes and devices mounted over, above or into the files of ours.
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
            Some(refusal(field, &format!("{path:?}"), &outside(ours)))
        })
    })
    .collect()
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
