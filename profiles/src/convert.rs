//! Converts other projects' configurations to profiles. A setting without a counterpart gets a note;
//! a key that is not in their documentation is an error.

pub mod hami;
pub mod mig_parted;
pub mod nvidia;

use serde_json::Value;

use crate::config::{Config, Profile, Rule};
use crate::error::ProfileErrors;
use crate::mode::{Exclusive, Mode};
use crate::read;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Converted {
    pub config: Config,
    /// Notes for the reader, such as on settings without a counterpart; one line each.
    pub notes: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    #[error(transparent)]
    Invalid(#[from] ProfileErrors),
    #[error(transparent)]
    Write(#[from] crate::config::WriteError),
}

impl Converted {
    /// The configuration as valid YAML, with the notes as comments above it.
    pub fn to_yaml(&self) -> Result<String, ConvertError> {
        let text = self.config.to_yaml()?;
        read::read(&text)?;
        let notes = self.notes.iter().map(|note| format!("# {note}\n"));
        Ok(notes.collect::<String>() + &text)
    }
}

/// A whole GPU for one container, the default of NVIDIA's plugin.
fn whole_gpu() -> Mode {
    Mode::Exclusive(Exclusive::default())
}

/// A profile of these rules, with `rest` unless they select all GPUs.
fn profile(gpus: Vec<Rule>, rest: Mode) -> Profile {
    let rest = (!gpus.iter().any(|rule| rule.select.all)).then_some(rest);
    Profile {
        gpus,
        rest,
        ..Profile::default()
    }
}

/// Whether a value is set: not null, empty or false.
fn is_set(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(all) => !all.is_empty(),
        Value::Object(map) => !map.is_empty(),
        Value::Bool(true) | Value::Number(_) => true,
    }
}
