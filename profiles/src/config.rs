//! A configuration as a value, and back to YAML.
//!
//! Fed by: [`read`](crate::read()) and the conversions. Must not: hold what
//! [`table`](crate::schema) does not know.

use std::collections::BTreeMap;

use aliquot_core::Namespace;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use thiserror::Error;

use crate::form;
use crate::mode::{Defaults, Mode, bare_or_full, is_false};
use crate::select::Select;

/// The version that this release reads and writes.
pub const VERSION: &str = "aliquot.dev/v1alpha1";

/// A whole file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Config {
    /// [`VERSION`].
    pub api_version: String,
    /// The profile of nodes that choose none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<String>,
    /// The profiles by name.
    pub profiles: BTreeMap<String, Profile>,
}

/// What holds on the nodes that have it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Profile {
    /// Nodes with all these labels have it; empty: none.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Which card has which mode.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<Rule>,
    /// The mode of all other cards.
    #[serde(
        deserialize_with = "bare_or_full",
        skip_serializing_if = "Option::is_none"
    )]
    pub rest: Option<Mode>,
    /// What happens to the pods of a card whose mode changes.
    #[serde(skip_serializing_if = "Transition::is_default")]
    pub transition: Transition,
}

/// A mode for some cards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// The cards.
    pub select: Select,
    /// It may select none.
    #[serde(default, skip_serializing_if = "is_false")]
    pub optional: bool,
    /// What of each of them only some namespaces are given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reserve: Vec<Reserve>,
    /// Their mode.
    #[serde(flatten)]
    pub mode: Mode,
}

/// What only pods of some namespaces are given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reserve {
    /// Instances of this MIG profile; without it all of the card.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// So many of them; one where it is not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// Whose pods.
    pub namespaces: Vec<Namespace>,
}

impl Reserve {
    /// How many instances.
    pub fn count(&self) -> u32 {
        self.count.unwrap_or(1)
    }
}

/// What happens to the pods of a card whose mode changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Transition {
    /// Wait or evict.
    pub policy: Policy,
    /// The card keeps its old mode if it is not free by then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Seconds>,
}

/// How a card gets free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// Its pods end by themselves.
    #[default]
    Wait,
    /// Its pods are evicted.
    Evict,
}

/// A time in seconds; in YAML such as `30m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seconds(pub u64);

/// A configuration that cannot be written.
#[derive(Debug, Error)]
#[error("the configuration cannot be written as YAML: {0}")]
pub struct WriteError(#[from] serde_saphyr::ser::Error);

impl Transition {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl Config {
    /// One profile, which every node has that chooses none.
    pub fn of(name: &str, profile: Profile) -> Self {
        Self {
            api_version: VERSION.to_owned(),
            default: Some(name.to_owned()),
            profiles: BTreeMap::from([(name.to_owned(), profile)]),
        }
    }

    /// As YAML, which [`read`](crate::read()) reads back to the same value.
    pub fn to_yaml(&self) -> Result<String, WriteError> {
        Ok(serde_saphyr::to_string(self)?)
    }
}

impl Profile {
    /// With the node's own settings wherever the profile has none: what holds.
    pub fn filled(&self, defaults: &Defaults) -> Self {
        let mut filled = self.clone();
        for rule in &mut filled.gpus {
            rule.mode = rule.mode.filled(defaults);
        }
        filled.rest = filled.rest.map(|rest| rest.filled(defaults));
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
        let seconds = form::seconds(&text).map(Self);
        seconds.ok_or_else(|| D::Error::custom(form::TIME.says))
    }
}
