//! The decision about one review: refuse with every fault, or patch and warn.
//!
//! Fed by: the pod as raw JSON, exactly as the API server sent it.
//! Must not: do IO, read a clock, or read the pod through a typed struct; fields
//! of a later Kubernetes survive because the patch names only what we own.

mod beyond;
mod edit;
mod env;
mod ephemeral;
mod escape;
mod fill;
mod foreign;
mod gate;
mod others;
mod pod;
mod room;
mod scheduler_name;
mod share;
mod strip;
mod wishes;

#[cfg(test)]
mod tests;

use std::fmt;

use json_patch::Patch;
use serde_json::Value;

use crate::settings::{Settings, VisibleDevices};
use edit::Editor;
use gate::Gate;
use pod::Kind;

pub use beyond::{FOLDER_NAME, KEYS, VENDORS};
pub use fill::DEFAULTED;
pub use strip::RESERVED;

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
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

/// One thing that cannot be meant: where, and what would be accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The field, as in `spec.containers[0].resources.limits["nvidia.com/gpumem"]`.
    pub field: String,
    /// The value and the accepted form.
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
    /// Every fault found, at least one.
    Deny(Vec<Refusal>),
    /// Admitted.
    Allow {
        /// The changes; empty when there are none.
        patch: Patch,
        /// What the user should know, a line each.
        warnings: Vec<String>,
    },
}

/// Decides about one pod. Pure, and idempotent: the patched pod gets no patch.
pub fn review(question: &Question<'_>, settings: &Settings) -> Verdict {
    match (question.operation, question.sub_resource) {
        ("CREATE", "") => create(question, settings),
        ("UPDATE", "ephemeralcontainers") => {
            let mut editor = Editor::new(question.pod);
            let found = ephemeral::judge(question, &mut editor, settings);
            verdict(found.refusals, editor, found.warnings)
        }
        _ => verdict(Vec::new(), Editor::new(question.pod), Vec::new()),
    }
}

fn create(question: &Question<'_>, settings: &Settings) -> Verdict {
    let mut editor = Editor::new(question.pod);
    let mut warnings = strip::strip(&mut editor);
    if pod::is_mirror(question.pod) {
        return verdict(Vec::new(), editor, warnings);
    }
    let containers = pod::containers(question.pod);
    if !scheduler_name::is_ours(question.pod, settings) {
        let found = foreign::judge(question, &mut editor, &containers, settings);
        warnings.extend(found.warnings);
        return verdict(found.refusals, editor, warnings);
    }

    let (shares, mut refusals) = share::read(&containers, settings);
    let escape_allowed = settings.escape_allowed.contains(question.namespace);
    let gate = Gate {
        pod: question.pod,
        settings,
        policy: visible_devices(question, settings),
        shared: !shares.is_empty(),
    };
    let mut found = env::judge(&mut editor, &containers, &shares, &gate);
    beyond::judge(&mut editor, &containers, &gate, &mut found);
    warnings.extend(found.warnings);
    let raw = found.refusals;
    if shares.is_empty() && refusals.is_empty() {
        return verdict(raw, editor, warnings);
    }
    refusals.extend(raw);
    refusals.extend(wishes::refusals(question.pod));
    refusals.extend(pod::preset_node(question.pod, &settings.scheduler_name));
    if !escape_allowed {
        let asks = |container: &pod::Container<'_>| {
            container.kind != Kind::Ephemeral && share::asks(container, settings)
        };
        refusals.extend(escape::refusals(question.pod, &containers, asks, settings));
    }
    warnings.extend(fill::fill(&mut editor, &shares, settings));
    scheduler_name::set(&mut editor, settings);
    refusals.extend(room::refusal(editor.pod()));
    verdict(refusals, editor, warnings)
}

/// What becomes of `NVIDIA_VISIBLE_DEVICES` in this namespace.
fn visible_devices(question: &Question<'_>, settings: &Settings) -> VisibleDevices {
    if settings.escape_allowed.contains(question.namespace) {
        VisibleDevices::Allow
    } else {
        settings.visible_devices
    }
}

fn verdict(refusals: Vec<Refusal>, editor: Editor, warnings: Vec<String>) -> Verdict {
    if refusals.is_empty() {
        let patch = editor.into_patch();
        Verdict::Allow { patch, warnings }
    } else {
        Verdict::Deny(refusals)
    }
}
