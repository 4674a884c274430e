//! Ephemeral containers added to a running pod: no resources of ours, no GPU by way of
//! the environment, no escape.
//!
//! Fed by: UPDATE of pods/ephemeralcontainers.
//! Must not: judge again the ephemeral containers that were there before.

use super::edit::Editor;
use super::env::{self, Found};
use super::gate::Gate;
use super::pod::{Kind, containers, items};
use super::{Question, beyond, escape, scheduler_name, share};
use crate::settings::Settings;

/// What is told and refused of the containers that this update adds, and done to them.
pub(super) fn judge(question: &Question<'_>, editor: &mut Editor, settings: &Settings) -> Found {
    let mut found = Found::default();
    let ours = scheduler_name::is_ours(question.pod, settings);
    let all = containers(question.pod);
    let shared = ours
        && all
            .iter()
            .any(|container| container.kind != Kind::Ephemeral && share::asks(container, settings));
    let escape_allowed = settings.escape_allowed.contains(question.namespace);
    let gate = Gate {
        pod: question.pod,
        settings,
        policy: super::visible_devices(question, settings),
        shared,
    };
    let before = items(&question.old_pod["spec"][Kind::Ephemeral.list()]);
    let is_new = |name: &str| !before.iter().any(|old| old["name"] == name);

    for container in all {
        if container.kind != Kind::Ephemeral || !is_new(container.name()) {
            continue;
        }
        if ours {
            found
                .refusals
                .extend(share::in_ephemeral(&container, settings));
        }
        let raw = env::judge_ephemeral(editor, &container, &gate);
        found.refusals.extend(raw.refusals);
        found.warnings.extend(raw.warnings);
        found.refusals.extend(beyond::mounts(&container, &gate));
        if shared && !escape_allowed {
            found.refusals.extend(escape::security_context(&container));
        }
    }
    found
}
