//! Ways in which a pod could escape its share, which the webhook refuses by the same rules of
//! [`aliquot_core::escape`].

use aliquot_core::escape::{self, AGENT_PATHS, CAPABILITIES, ClosedPath};
use aliquot_k8s::pod;
use k8s_openapi::api::core::v1::{Container, Pod, Volume};

use crate::doctor::finding::{Checked, problem};

/// All of a pod's escapes together.
pub(super) fn escapes(object: &Pod) -> Option<Checked> {
    let spec = object.spec.as_ref()?;
    let mut ways: Vec<String> = Vec::new();
    if spec.host_pid == Some(true) {
        ways.push("hostPID".to_owned());
    }
    let containers: Vec<&Container> = pod::containers(object).map(|(one, _)| one).collect();
    for container in &containers {
        ways.extend(security_context(container));
        ways.extend(hidden(container));
    }
    let volumes = spec.volumes.as_deref().unwrap_or_default().iter();
    ways.extend(volumes.filter_map(|volume| host_path(&containers, volume)));
    (!ways.is_empty()).then(|| {
        problem(
            format!(
                "the webhook refuses a pod with a share that can escape it: {}",
                ways.join(", ")
            ),
            "remove it, or add the namespace to webhook.escapeAllowNamespaces",
        )
    })
}

fn security_context(container: &Container) -> Vec<String> {
    let mut ways = Vec::new();
    let Some(context) = &container.security_context else {
        return ways;
    };
    if context.privileged == Some(true) {
        ways.push(format!("privileged container {}", container.name));
    }
    if context.proc_mount.as_deref() == Some("Unmasked") {
        ways.push(format!(
            "procMount Unmasked of container {}",
            container.name
        ));
    }
    let capabilities = context.capabilities.as_ref();
    let added = capabilities.and_then(|all| all.add.as_deref());
    let open = |name: &&String| escape::is_one_of(&CAPABILITIES, name);
    ways.extend(added.unwrap_or_default().iter().filter(open).cloned());
    ways
}

/// Mounts over, above or below Aliquot's files.
fn hidden(container: &Container) -> Vec<String> {
    let mounts = container.volume_mounts.iter().flatten();
    let devices = container.volume_devices.iter().flatten();
    let places = mounts.map(|one| &one.mount_path);
    let places = places.chain(devices.map(|one| &one.device_path));
    places
        .filter_map(|at| Some(format!("a mount at {at}, over {}", escape::shadows(at)?)))
        .collect()
}

fn host_path(containers: &[&Container], volume: &Volume) -> Option<String> {
    let source = volume.host_path.as_ref()?;
    let kind = source.type_.as_deref().unwrap_or_default();
    let is_written = containers.iter().any(|one| writes(one, volume));
    Some(
        match escape::host_path(&source.path, kind, is_written, AGENT_PATHS.into_iter())? {
            ClosedPath::Device => format!("hostPath {} of type {kind}", source.path),
            ClosedPath::Overlaps(_) => format!("hostPath {}", source.path),
            ClosedPath::Written(_) => format!("hostPath {} without readOnly: true", source.path),
        },
    )
}

/// Whether the container mounts the volume writable.
pub(super) fn writes(container: &Container, volume: &Volume) -> bool {
    let mut mounts = container.volume_mounts.iter().flatten();
    mounts.any(|mount| mount.name == volume.name && mount.read_only != Some(true))
}
