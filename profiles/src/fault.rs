//! What is wrong with a configuration: where, which value, and what is accepted.
//!
//! Fed by: the checks of this crate. Must not: take more than one line, or cut off
//! the path; a long value is cut.

use std::fmt;

use serde_json::Value;
use thiserror::Error;

/// The path of a whole file.
pub const TOP: &str = "(file)";
/// Longest text of a value, in characters.
const LONGEST: usize = 60;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct Fault {
    /// Such as `profiles.lab.gpus[2].replicas`.
    pub path: String,
    /// As it was written; empty where nothing was.
    pub value: String,
    /// What is wrong with it, such as `is too many`.
    pub what: String,
    /// What would be right.
    pub accepted: String,
}

/// Everything that is wrong, in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}", .0.iter().map(Fault::to_string).collect::<Vec<_>>().join("\n"))]
pub struct Faults(pub Vec<Fault>);

impl Fault {
    /// A value that is wrong.
    pub fn new(
        path: impl Into<String>,
        value: &Value,
        what: impl Into<String>,
        accepted: impl Into<String>,
    ) -> Self {
        Self {
            path: path.into(),
            value: shown(value),
            what: what.into(),
            accepted: accepted.into(),
        }
    }

    /// Something that is wrong of itself, or not there.
    pub fn bare(
        path: impl Into<String>,
        what: impl Into<String>,
        accepted: impl Into<String>,
    ) -> Self {
        Self {
            path: path.into(),
            value: String::new(),
            what: what.into(),
            accepted: accepted.into(),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = if self.value.is_empty() { "" } else { " " };
        let (path, accepted) = (&self.path, &self.accepted);
        write!(
            f,
            "{path}: {}{value}{}; accepted: {accepted}",
            self.value, self.what
        )
    }
}

/// A value on one line.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// The path of a key below another.
pub fn below(path: &str, key: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let plain = !key.is_empty() && key.chars().all(plain);
    match (path == TOP, plain) {
        (true, true) => key.to_owned(),
        (false, true) => format!("{path}.{key}"),
        (true, false) => format!("[{}]", Value::from(key)),
        (false, false) => format!("{path}[{}]", Value::from(key)),
    }
}
