//! Which profile a node has: its label, NVIDIA's label, a node selector, the
//! default, and without any of these vgpu on all cards.
//!
//! Fed by: a configuration and the node's labels. Must not: pass over a label that
//! names no profile, or pick one of two.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::json;

use crate::config::{Config, Profile, Rule};
use crate::fault::{Fault, below};
use crate::mode::{Mode, Vgpu};
use crate::select::Select;

/// Our label on a node.
pub const LABEL: &str = "aliquot.dev/profile";
/// NVIDIA's label on a node.
pub const NVIDIA_LABEL: &str = "nvidia.com/device-plugin.config";
/// The profile of those who have configured nothing.
pub const BUILT_IN: &str = "built-in";

/// A node's profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen<'a> {
    /// Its name.
    pub name: &'a str,
    /// Why this one.
    pub by: By,
    /// What it says.
    pub profile: Cow<'a, Profile>,
}

/// What chose a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// A label of this key.
    Label(&'static str),
    /// The profile's node selector.
    NodeSelector,
    /// The configuration's default.
    Default,
    /// Nothing: no profile is meant for the node.
    Nothing,
}

/// vgpu on all cards.
pub fn built_in() -> Profile {
    Profile {
        gpus: vec![Rule {
            select: Select::all(),
            // A node whose cards are all lost has a profile still.
            optional: true,
            reserve: Vec::new(),
            mode: Mode::Vgpu(Vgpu::default()),
        }],
        ..Profile::default()
    }
}

/// The profile of a node with these labels; `None`: there is no configuration.
pub fn choose<'a>(
    config: Option<&'a Config>,
    labels: &BTreeMap<String, String>,
) -> Result<Chosen<'a>, Fault> {
    let nothing = || Chosen {
        name: BUILT_IN,
        by: By::Nothing,
        profile: Cow::Owned(built_in()),
    };
    let Some(config) = config else {
        return Ok(nothing());
    };
    let by_name = |name: &str, by: By| {
        let (name, profile) = config.profiles.get_key_value(name)?;
        let profile = Cow::Borrowed(profile);
        Some(Chosen { name, by, profile })
    };
    for key in [LABEL, NVIDIA_LABEL] {
        let Some(value) = labels.get(key).filter(|value| !value.is_empty()) else {
            continue;
        };
        return by_name(value, By::Label(key)).ok_or_else(|| {
            let names: Vec<&str> = config.profiles.keys().map(String::as_str).collect();
            let path = below("metadata.labels", key);
            Fault::new(path, &json!(value), "is no profile", names.join(", "))
        });
    }
    let selects = |profile: &&Profile| {
        let wanted = &profile.node_selector;
        !wanted.is_empty() && wanted.iter().all(|(k, v)| labels.get(k) == Some(v))
    };
    let by_selector = config.profiles.iter().filter(|(_, p)| selects(p));
    let names: Vec<&str> = by_selector.map(|(name, _)| name.as_str()).collect();
    let chosen = match names[..] {
        [] => {
            let default = config.default.as_deref();
            default.and_then(|name| by_name(name, By::Default))
        }
        [name] => by_name(name, By::NodeSelector),
        _ => {
            let what = format!(
                "are selected by {} profiles: {}",
                names.len(),
                names.join(", ")
            );
            let accepted = format!("one; the label {LABEL} settles it");
            return Err(Fault::bare("metadata.labels", what, accepted));
        }
    };
    Ok(chosen.unwrap_or_else(nothing))
}
