//! Pods of schedulers that are not ours: they are placed and given cards by others, and
//! neither their environment nor a node of their choice leads them past the books.
//!
//! Fed by: new pods whose `schedulerName` the settings do not name. Anybody can write such a
//! name, and with `nodeName` beside it no scheduler at all sees the pod.
//! Must not: fill in, pin, or judge what they ask for.

use super::beyond;
use super::edit::Editor;
use super::env::{self, Found};
use super::gate::Gate;
use super::pod::{self, Container, Kind};
use super::{Question, share};
use crate::settings::Settings;

/// What is told and refused of it, and done to it.
pub(super) fn judge(
    question: &Question<'_>,
    editor: &mut Editor,
    containers: &[Container<'_>],
    settings: &Settings,
) -> Found {
    let gate = Gate {
        pod: question.pod,
        settings,
        policy: super::visible_devices(question, settings),
        shared: false,
    };
    let mut found = Found::default();
    let mut asking = false;
    let lasting = containers.iter().filter(|c| c.kind != Kind::Ephemeral);
    for container in lasting {
        // Nothing is filled in here: who writes a part of no card is handed nothing.
        let takes = share::takes_units(container, settings);
        env::judge_foreign(editor, container, takes, &gate, &mut found);
        asking |= share::asks(container, settings);
    }
    beyond::judge(editor, containers, &gate, &mut found);
    if asking {
        let scheduler = question.pod["spec"]["schedulerName"].as_str();
        let scheduler = scheduler.unwrap_or_default();
        found
            .refusals
            .extend(pod::preset_node(question.pod, scheduler));
    }
    found
}
