//! Ephemeral containers added to a running pod: no resources of ours, no escape.
//!
//! Fed by: UPDATE of pods/ephemeralcontainers.
//! Must not: judge again the ephemeral containers that were there before.

use super::pod::{Kind, containers, items};
use super::{Question, Refusal, escape, scheduler_name, share};
use crate::settings::Settings;

/// The faults of the containers that this update adds.
pub(super) fn refusals(question: &Question<'_>, settings: &Settings) -> Vec<Refusal> {
    if !scheduler_name::is_ours(question.pod, settings) {
        return Vec::new();
    }
    let all = containers(question.pod);
    let shared = all
        .iter()
        .any(|container| container.kind != Kind::Ephemeral && share::asks(container, settings));
    let escape_matters = shared && !settings.escape_allowed.contains(question.namespace);
    let before = items(&question.old_pod["spec"][Kind::Ephemeral.list()]);
    let is_new = |name: &str| !before.iter().any(|old| old["name"] == name);

    let mut refusals = Vec::new();
    for container in all {
        if container.kind != Kind::Ephemeral || !is_new(container.name()) {
            continue;
        }
        refusals.extend(share::in_ephemeral(&container, settings));
        if escape_matters {
            refusals.extend(escape::security_context(&container));
        }
    }
    refusals
}
