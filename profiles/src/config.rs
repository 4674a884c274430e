//! The configuration's types, and their YAML. Every key is also in the schema (`config_schema`).

use std::collections::BTreeMap;

use aliquot_core::Namespace;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use thiserror::Error;

use crate::gpu_selector::GpuSelector;
use crate::mode::{Defaults, Mode, is_false, name_or_settings};
use crate::text_format;

/// The version that this release reads and writes.
pub const VERSION: &str = "aliquot.dev/v1alpha1";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Config {
    /// [`VERSION`].
    pub api_version: String,
    /// The profile of nodes without another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<String>,
    pub profiles: BTreeMap<String, Profile>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Profile {
    /// Nodes with all these labels get it; empty: none.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<Rule>,
    /// The mode of all other GPUs.
    #[serde(
        deserialize_with = "name_or_settings",
        skip_serializing_if = "Option::is_none"
    )]
    pub rest: Option<Mode>,
    /// What happens to the pods of a GPU whose mode changes.
    #[serde(skip_serializing_if = "Transition::is_default")]
    pub transition: Transition,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    pub select: GpuSelector,
    /// It may select no GPU.
    #[serde(default, skip_serializing_if = "is_false")]
    pub optional: bool,
    /// What of each GPU is reserved for some namespaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reserve: Vec<Reservation>,
    #[serde(flatten)]
    pub mode: Mode,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    /// Instances of this MIG profile; without it the whole GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// The number of instances; one by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    pub namespaces: Vec<Namespace>,
}

impl Rule {
    /// This mode for GPUs that must exist, without reservations.
    pub fn new(select: GpuSelector, mode: Mode) -> Self {
        Self {
            select,
            optional: false,
            reserve: Vec::new(),
            mode,
        }
    }
}

impl Reservation {
    pub fn count(&self) -> u32 {
        self.count.unwrap_or(1)
    }
}

/// What happens to the pods of a GPU whose mode changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Transition {
    pub policy: TransitionPolicy,
    /// The GPU keeps its old mode if it is not free by then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Seconds>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TransitionPolicy {
    /// Wait until its pods end.
    #[default]
    Wait,
    /// Evict its pods.
    Evict,
}

/// A duration in seconds; in YAML such as `30m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seconds(pub u64);

#[derive(Debug, Error)]
#[error("the configuration cannot be written as YAML: {0}")]
pub struct WriteError(#[from] serde_saphyr::ser::Error);

impl Transition {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl Config {
    /// A configuration with one profile, which is the default.
    pub fn new(name: &str, profile: Profile) -> Self {
        Self {
            api_version: VERSION.to_owned(),
            default: Some(name.to_owned()),
            profiles: BTreeMap::from([(name.to_owned(), profile)]),
        }
    }

    /// As YAML that [`read`](crate::read()) parses to the same value.
    pub fn to_yaml(&self) -> Result<String, WriteError> {
        Ok(serde_saphyr::to_string(self)?)
    }
}

impl Profile {
    /// The profile with the node's defaults wherever it sets none.
    pub fn with_defaults(&self, defaults: &Defaults) -> Self {
        let mut filled = self.clone();
        for rule in &mut filled.gpus {
            rule.mode = rule.mode.with_defaults(defaults);
        }
        filled.rest = filled.rest.map(|rest| rest.with_defaults(defaults));
        filled
    }
}

impl Serialize for Seconds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (number, unit) = match self.0 {
            hours if hours.is_multiple_of(3600) => (hours / 3600, 'h'),
            minutes if minutes.is_multiple_of(60) => (minutes / 60, 'm'),
            seconds => (seconds, 's'),
        };
        serializer.serialize_str(&format!("{number}{unit}"))
    }
}

impl<'de> Deserialize<'de> for Seconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let seconds = text_format::seconds(&text).map(Self);
        seconds.ok_or_else(|| D::Error::custom(text_format::TIME.expectation))
    }
}
