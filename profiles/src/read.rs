//! Parses and validates a configuration: a valid value, or all errors.

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::config::{Config, VERSION};
use crate::config_schema;
use crate::error::{ProfileError, ProfileErrors, ROOT};
use crate::schema::ValueSchema;
use crate::validate;

pub fn read(text: &str) -> Result<Config, ProfileErrors> {
    let value = parse_yaml(text)?;
    if let Some(error) = foreign_format(&value) {
        return Err(ProfileErrors(vec![error]));
    }
    let config: Config = parse_typed(&config_schema::CONFIG, value)?;
    let errors = validate::errors(&config);
    if errors.is_empty() {
        Ok(config)
    } else {
        Err(ProfileErrors(errors))
    }
}

/// Reads YAML, or JSON, as one value.
pub(crate) fn parse_yaml(text: &str) -> Result<Value, ProfileErrors> {
    serde_saphyr::from_str(text).map_err(|error| {
        let location = error.location().map_or_else(
            || ROOT.to_owned(),
            |at| format!("line {}, column {}", at.line(), at.column()),
        );
        let message = error.without_snippet().to_string();
        // Without the parser's hints, and without the location again.
        let line = message.lines().next().unwrap_or_default();
        let (line, _) = line.split_once(" at line ").unwrap_or((line, ""));
        let (reason, _) = line.split_once(", set ").unwrap_or((line, ""));
        ProfileErrors(vec![ProfileError::without_value(
            location,
            format!("cannot be parsed ({reason})"),
            "one YAML document with unique keys",
        )])
    })
}

/// Checks a value against its schema and deserializes it.
pub(crate) fn parse_typed<T: DeserializeOwned>(
    schema: &ValueSchema,
    value: Value,
) -> Result<T, ProfileErrors> {
    let mut errors = Vec::new();
    schema.check(&value, ROOT, &mut errors);
    if !errors.is_empty() {
        return Err(ProfileErrors(errors));
    }
    serde_json::from_value(value).map_err(|error| {
        let what = format!("cannot be parsed ({error})");
        ProfileErrors(vec![ProfileError::without_value(
            ROOT,
            what,
            schema.expectation(),
        )])
    })
}

/// The single error for a file of NVIDIA's device plugin, instead of one for each key.
fn foreign_format(value: &Value) -> Option<ProfileError> {
    if value.get("sharing").is_none() && value.get("flags").is_none() {
        return None;
    }
    let what = "is a configuration of NVIDIA's device plugin";
    let expected =
        format!("apiVersion {VERSION}; convert it with: kubectl-aliquot config convert FILE");
    Some(ProfileError::without_value(ROOT, what, expected))
}
