//! Others' configurations as ours.
//!
//! Fed by: the text of their files. Must not: leave out a setting without a note, or
//! take a key that their documentation does not have.

pub mod hami;
pub mod mig_parted;
pub mod nvidia;

use serde_json::Value;

use crate::config::{Config, Profile, Rule};
use crate::fault::Faults;
use crate::mode::{Exclusive, Mode};
use crate::read;
use crate::select::Select;

/// What came of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Converted {
    /// Ours.
    pub config: Config,
    /// What has no place in a profile, or what a reader should know; a line each.
    pub notes: Vec<String>,
}

/// Why there is no YAML.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// The file, or what it would become.
    #[error(transparent)]
    Faults(#[from] Faults),
    /// The result.
    #[error(transparent)]
    Write(#[from] crate::config::WriteError),
}

impl Converted {
    /// The configuration as YAML that [`read`](crate::read()) takes, the notes above it.
    pub fn to_yaml(&self) -> Result<String, ConvertError> {
        let text = self.config.to_yaml()?;
        read::read(&text)?;
        let notes = self.notes.iter().map(|note| format!("# {note}\n"));
        Ok(notes.collect::<String>() + &text)
    }
}

/// A whole card for one container: what NVIDIA's plugin gives by default.
fn whole() -> Mode {
    Mode::Exclusive(Exclusive::default())
}

fn rule(select: Select, mode: Mode) -> Rule {
    Rule {
        select,
        optional: false,
        reserve: Vec::new(),
        mode,
    }
}

/// A profile of these rules, with `rest` where they do not take all cards.
fn profile(gpus: Vec<Rule>, rest: Mode) -> Profile {
    let rest = (!gpus.iter().any(|rule| rule.select.all)).then_some(rest);
    Profile {
        gpus,
        rest,
        ..Profile::default()
    }
}

/// Whether this says something: not nothing, not empty, not false.
fn says_something(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(all) => !all.is_empty(),
        Value::Object(map) => !map.is_empty(),
        Value::Bool(true) | Value::Number(_) => true,
    }
}
