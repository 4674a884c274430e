//! Selects a node's profile: by our label, NVIDIA's label, a node selector, the default, or else vgpu
//! on all GPUs. A label that names no profile, or two matching selectors, are errors.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::json;

use crate::config::{Config, Profile, Rule};
use crate::error::{ProfileError, child_path};
use crate::gpu_selector::GpuSelector;
use crate::mode::{Mode, Vgpu};

/// Our label on a node.
pub const LABEL: &str = "aliquot.dev/profile";
/// NVIDIA's label on a node.
pub const NVIDIA_LABEL: &str = "nvidia.com/device-plugin.config";
/// The profile of nodes without any other.
pub const BUILT_IN: &str = "built-in";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectedProfile<'a> {
    pub name: &'a str,
    pub source: ProfileSource,
    pub profile: Cow<'a, Profile>,
}

/// What selected a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProfileSource {
    /// The label with this key.
    Label(&'static str),
    /// The profile's node selector.
    NodeSelector,
    /// The configuration's default.
    Default,
    /// Nothing: the node gets the built-in profile.
    BuiltIn,
}

/// vgpu on all GPUs.
pub fn built_in() -> Profile {
    Profile {
        gpus: vec![Rule {
            // A node that has lost all its GPUs still has a profile.
            optional: true,
            ..Rule::new(GpuSelector::all(), Mode::Vgpu(Vgpu::default()))
        }],
        ..Profile::default()
    }
}

/// Selects the profile of a node with these labels; `config` is `None` without a configuration.
pub fn select_profile<'a>(
    config: Option<&'a Config>,
    labels: &BTreeMap<String, String>,
) -> Result<SelectedProfile<'a>, ProfileError> {
    let default_profile = || SelectedProfile {
        name: BUILT_IN,
        source: ProfileSource::BuiltIn,
        profile: Cow::Owned(built_in()),
    };
    let Some(config) = config else {
        return Ok(default_profile());
    };
    let by_name = |name: &str, source: ProfileSource| {
        let (name, profile) = config.profiles.get_key_value(name)?;
        let profile = Cow::Borrowed(profile);
        Some(SelectedProfile {
            name,
            source,
            profile,
        })
    };
    for key in [LABEL, NVIDIA_LABEL] {
        let Some(value) = labels.get(key).filter(|value| !value.is_empty()) else {
            continue;
        };
        return by_name(value, ProfileSource::Label(key)).ok_or_else(|| {
            let names: Vec<&str> = config.profiles.keys().map(String::as_str).collect();
            let path = child_path("metadata.labels", key);
            ProfileError::new(path, &json!(value), "is not a profile", names.join(", "))
        });
    }
    let selects = |profile: &&Profile| {
        let requested = &profile.node_selector;
        !requested.is_empty() && requested.iter().all(|(k, v)| labels.get(k) == Some(v))
    };
    let by_selector = config.profiles.iter().filter(|(_, p)| selects(p));
    let names: Vec<&str> = by_selector.map(|(name, _)| name.as_str()).collect();
    let selected = match names[..] {
        [] => {
            let default = config.default.as_deref();
            default.and_then(|name| by_name(name, ProfileSource::Default))
        }
        [name] => by_name(name, ProfileSource::NodeSelector),
        _ => {
            let what = format!("match {} profiles: {}", names.len(), names.join(", "));
            let expected = format!("one profile; the label {LABEL} takes precedence");
            return Err(ProfileError::without_value(
                "metadata.labels",
                what,
                expected,
            ));
        }
    };
    Ok(selected.unwrap_or_else(default_profile))
}
