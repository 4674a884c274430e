//! The decision about one review: refuse with every error found, or patch and warn.
//!
//! A review is a pure function of the raw JSON that the API server sent. The patch names only the
//! fields that the webhook owns, so fields of later Kubernetes releases survive.

mod annotations;
mod defaults;
mod device_injection;
mod environment;
mod isolation;
mod patch;
mod pod;
mod request;

#[cfg(test)]
mod tests;

use std::fmt;

use json_patch::Patch;
use serde_json::Value;

use crate::settings::{Settings, VisibleDevices};
use environment::PodContext;
use patch::PodEditor;
use pod::{Container, Kind};

pub use annotations::RESERVED;
pub use defaults::DEFAULTED;
pub use device_injection::{CDI_KEYS, CDI_VENDORS, MOUNT_FOLDER_NAME};

/// The part of an admission request that a review reads.
#[derive(Clone, Copy, Debug)]
pub struct PodReview<'a> {
    /// `CREATE`, `UPDATE`, ...
    pub operation: &'a str,
    /// Empty, or `ephemeralcontainers`.
    pub sub_resource: &'a str,
    /// The pod's namespace.
    pub namespace: &'a str,
    /// The pod.
    pub pod: &'a Value,
    /// The pod before an update; null at creation.
    pub old_pod: &'a Value,
}

/// One invalid value: its field, and what is expected there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The field, as in `spec.containers[0].resources.limits["nvidia.com/gpumem"]`.
    pub field: String,
    /// The value, what is wrong with it, and what is expected.
    pub message: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// The answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Every error found, at least one.
    Deny(Vec<Refusal>),
    /// Admitted.
    Allow {
        /// The changes; empty when there are none.
        patch: Patch,
        /// Texts for the user, one line each.
        warnings: Vec<String>,
    },
}

/// What the checks of one pod found.
#[derive(Default)]
struct Findings {
    warnings: Vec<String>,
    refusals: Vec<Refusal>,
}

impl Findings {
    fn verdict(self, editor: PodEditor) -> Verdict {
        if self.refusals.is_empty() {
            Verdict::Allow {
                patch: editor.into_patch(),
                warnings: self.warnings,
            }
        } else {
            Verdict::Deny(self.refusals)
        }
    }
}

/// Decides about one pod. Pure and idempotent: the patched pod gets no further patch.
pub fn review(request: &PodReview<'_>, settings: &Settings) -> Verdict {
    let mut editor = PodEditor::new(request.pod);
    let mut findings = Findings::default();
    match (request.operation, request.sub_resource) {
        ("CREATE", "") => create(request, settings, &mut editor, &mut findings),
        ("UPDATE", "ephemeralcontainers") => {
            ephemeral_containers(request, settings, &mut editor, &mut findings);
        }
        _ => {}
    }
    findings.verdict(editor)
}

fn create(
    request: &PodReview<'_>,
    settings: &Settings,
    editor: &mut PodEditor,
    findings: &mut Findings,
) {
    findings
        .warnings
        .extend(annotations::remove_reserved(editor));
    if pod::is_mirror(request.pod) {
        return;
    }
    let containers = pod::containers(request.pod);
    if !is_ours(request.pod, settings) {
        pod_of_other_scheduler(request, settings, &containers, editor, findings);
        return;
    }

    let (requests, refusals) = request::read(&containers, settings);
    let context = PodContext {
        pod: request.pod,
        settings,
        policy: visible_devices(request, settings),
        requests_share: !requests.is_empty(),
    };
    let asks = !requests.is_empty() || !refusals.is_empty();
    findings.refusals.extend(refusals);
    environment::check(editor, &containers, &requests, &context, findings);
    device_injection::check(editor, &containers, &context, findings);
    if !asks {
        return;
    }
    let refusals = &mut findings.refusals;
    refusals.extend(annotations::invalid_preferences(request.pod));
    refusals.extend(preset_node(request.pod, &settings.scheduler_name));
    if !settings.escape_allowed.contains(request.namespace) {
        let requests_share = |container: &Container<'_>| {
            container.kind != Kind::Ephemeral && request::asks(container, settings)
        };
        refusals.extend(isolation::refusals(
            request.pod,
            &containers,
            requests_share,
            settings,
        ));
    }
    let warnings = defaults::fill(editor, &requests, settings);
    findings.warnings.extend(warnings);
    set_scheduler(editor, settings);
    findings
        .refusals
        .extend(annotations::too_large(editor.pod()));
}

/// A pod whose `schedulerName` the settings do not name: another scheduler places it and another
/// plugin may give it GPUs, so nothing is filled in or pinned. Anybody can write such a name, and
/// with `nodeName` beside it no scheduler sees the pod: neither its environment nor its node may
/// bypass the scheduler.
fn pod_of_other_scheduler(
    request: &PodReview<'_>,
    settings: &Settings,
    containers: &[Container<'_>],
    editor: &mut PodEditor,
    findings: &mut Findings,
) {
    let context = PodContext {
        pod: request.pod,
        settings,
        policy: visible_devices(request, settings),
        requests_share: false,
    };
    let mut asks = false;
    for container in containers.iter().filter(|c| c.kind != Kind::Ephemeral) {
        // Nothing is filled in here: a container that asks for memory alone gets no device.
        let gets_devices = request::counts_devices(container, settings);
        environment::check_of_other_scheduler(editor, container, gets_devices, &context, findings);
        asks |= request::asks(container, settings);
    }
    device_injection::check(editor, containers, &context, findings);
    if asks {
        let scheduler = request.pod["spec"]["schedulerName"].as_str();
        let scheduler = scheduler.unwrap_or_default();
        findings.warnings.push(format!(
            "spec.schedulerName is {scheduler:?}: the pod gets no share, and nodes that Aliquot serves refuse it; expected: {:?}, or a node with another device plugin",
            settings.scheduler_name
        ));
        findings
            .refusals
            .extend(preset_node(request.pod, scheduler));
    }
}

/// Ephemeral containers that this update adds to a running pod: no resources of ours, no GPUs by
/// way of the environment, no escape. Those that were there before are not reviewed again.
fn ephemeral_containers(
    request: &PodReview<'_>,
    settings: &Settings,
    editor: &mut PodEditor,
    findings: &mut Findings,
) {
    let ours = is_ours(request.pod, settings);
    let all = pod::containers(request.pod);
    let requests_share = ours
        && all.iter().any(|container| {
            container.kind != Kind::Ephemeral && request::asks(container, settings)
        });
    let context = PodContext {
        pod: request.pod,
        settings,
        policy: visible_devices(request, settings),
        requests_share,
    };
    let before = pod::items(&request.old_pod["spec"][Kind::Ephemeral.list()]);
    let is_new = |name: &str| !before.iter().any(|old| old["name"] == name);

    for container in all {
        if container.kind != Kind::Ephemeral || !is_new(container.name()) {
            continue;
        }
        if ours {
            let refusals = request::in_ephemeral(&container, settings);
            findings.refusals.extend(refusals);
        }
        environment::check_ephemeral(editor, &container, &context, findings);
        let mounts = device_injection::mounts(&container, &context);
        findings.refusals.extend(mounts);
        if requests_share && !settings.escape_allowed.contains(request.namespace) {
            let refusals = isolation::security_context(&container);
            findings.refusals.extend(refusals);
        }
    }
}

/// The policy for `NVIDIA_VISIBLE_DEVICES` in this namespace.
fn visible_devices(request: &PodReview<'_>, settings: &Settings) -> VisibleDevices {
    if settings.escape_allowed.contains(request.namespace) {
        VisibleDevices::Allow
    } else {
        settings.visible_devices
    }
}

/// The pod names no scheduler, ours, or one that ours replaces.
fn is_ours(pod: &Value, settings: &Settings) -> bool {
    let name = pod["spec"]["schedulerName"].as_str().unwrap_or_default();
    name.is_empty()
        || name == settings.scheduler_name
        || settings.replaced_schedulers.contains(name)
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

/// A pod that names its node bypasses every scheduler, also the one that it names.
fn preset_node(pod: &Value, scheduler: &str) -> Option<Refusal> {
    let node = pod::named_node(pod)?;
    Some(Refusal {
        field: "spec.nodeName".to_owned(),
        message: format!(
            "{node:?} bypasses scheduler {scheduler}, which allocates the pod's GPU share; \
             expected: no nodeName (use nodeSelector or affinity to choose nodes)"
        ),
    })
}
