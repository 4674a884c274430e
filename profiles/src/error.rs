//! Errors of a configuration: where, which value, and what is expected. Each takes one line, with
//! an excerpt of the value.

use std::fmt;

use aliquot_core::Excerpt;
use serde_json::Value;
use thiserror::Error;

/// The path of a whole file.
pub const ROOT: &str = "(file)";

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct ProfileError {
    /// Such as `profiles.lab.gpus[2].replicas`.
    pub path: String,
    /// The value as written; empty if there is none.
    pub value: String,
    /// What is wrong with it, such as `is too many`.
    pub what: String,
    /// What is expected.
    pub expected: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}", .0.iter().map(ProfileError::to_string).collect::<Vec<_>>().join("\n"))]
pub struct ProfileErrors(pub Vec<ProfileError>);

impl ProfileError {
    pub fn new(
        path: impl Into<String>,
        value: &Value,
        what: impl Into<String>,
        expected: impl Into<String>,
    ) -> Self {
        Self {
            path: path.into(),
            value: Excerpt::of(value).to_string(),
            what: what.into(),
            expected: expected.into(),
        }
    }

    /// An error without a value, such as a missing key.
    pub fn without_value(
        path: impl Into<String>,
        what: impl Into<String>,
        expected: impl Into<String>,
    ) -> Self {
        Self {
            path: path.into(),
            value: String::new(),
            what: what.into(),
            expected: expected.into(),
        }
    }
}

impl fmt::Display for ProfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = if self.value.is_empty() { "" } else { " " };
        let (path, expected) = (&self.path, &self.expected);
        write!(
            f,
            "{path}: {}{value}{}; expected: {expected}",
            self.value, self.what
        )
    }
}

/// The path of a key below another.
pub fn child_path(path: &str, key: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let plain = !key.is_empty() && key.chars().all(plain);
    match (path == ROOT, plain) {
        (true, true) => key.to_owned(),
        (false, true) => format!("{path}.{key}"),
        (true, false) => format!("[{}]", Value::from(key)),
        (false, false) => format!("{path}[{}]", Value::from(key)),
    }
}
