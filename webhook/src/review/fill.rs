//! Step 3: the values that a container left out, in limits and requests alike.
//!
//! Fed by: the shares that were read, and the cluster's defaults.
//! Must not: change a value that the user wrote.

use std::collections::BTreeMap;

use aliquot_core::request::{Fill, Resource};
use serde_json::{Value, json};

use super::edit::Editor;
use super::pod::Container;
use super::share::{Share, Texts, text};
use crate::settings::Settings;

/// Lists what was filled in, for those who never see warnings, and for the scheduler.
pub use aliquot_core::request::DEFAULTED;

type Defaulted = BTreeMap<String, BTreeMap<String, String>>;

/// Writes the missing values; a warning for each.
pub(super) fn fill(editor: &mut Editor, shares: &[Share<'_>], settings: &Settings) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut defaulted = Defaulted::new();
    for share in shares {
        let container = &share.container;
        let fills = share.written.fills(&settings.defaults);
        for fill in &fills {
            let name = settings.names.of(fill.resource);
            let value = fill.value.to_string();
            set(editor, container, "limits", name, &value);
            set(editor, container, "requests", name, &value);
            let line = warning(fill, settings);
            warnings.push(match shares.len() {
                1 => line,
                _ => format!("container {}: {line}", container.name()),
            });
            let of_container = defaulted.entry(container.name().to_owned()).or_default();
            of_container.insert(name.to_owned(), value);
        }
        follow(editor, share, settings);
    }
    if !defaulted.is_empty() {
        annotate(editor, defaulted);
    }
    warnings
}

/// Requests equal limits, also where the user wrote only one of the two.
fn follow(editor: &mut Editor, share: &Share<'_>, settings: &Settings) {
    let Share {
        container, others, ..
    } = share;
    let five = Resource::ALL.map(|resource| settings.names.of(resource));
    for name in five.into_iter().chain(others.iter().copied()) {
        match Texts::named(container, name) {
            Texts {
                limit: Some(limit),
                request: None,
            } => {
                set(editor, container, "requests", name, limit);
            }
            Texts {
                limit: None,
                request: Some(request),
            } => {
                set(editor, container, "limits", name, request);
            }
            _ => {}
        }
    }
}

fn set(editor: &mut Editor, container: &Container<'_>, list: &str, name: &str, value: &str) {
    let index = container.index.to_string();
    let path = [
        "spec",
        container.kind.list(),
        &index,
        "resources",
        list,
        name,
    ];
    editor.set(&path, text(value));
}

/// Adds to what an earlier review of the same pod wrote.
fn annotate(editor: &mut Editor, added: Defaulted) {
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

fn warning(fill: &Fill, settings: &Settings) -> String {
    let name = |resource| settings.names.of(resource);
    let percentage = name(Resource::MemoryPercentage);
    let value = fill.value;
    match fill.resource {
        Resource::Gpu => format!("{} not set: {value}", name(Resource::Gpu)),
        Resource::Memory => format!(
            "{} not set: {value} MiB; ask for {percentage}: 100 for a whole card",
            name(Resource::Memory)
        ),
        Resource::MemoryPercentage => format!(
            "{} not set: {percentage}: {value}, the whole memory of a card",
            name(Resource::Memory)
        ),
        Resource::Cores => format!(
            "{} not set: {value}{}",
            name(Resource::Cores),
            match value {
                0 => ", no part of the compute is set aside or capped",
                100 => " percent, alone on the card",
                _ => " percent of a card's compute",
            }
        ),
        Resource::Priority => format!(
            "{} not set: {value} ({})",
            name(Resource::Priority),
            if value == 0 { "high" } else { "low" }
        ),
    }
}
