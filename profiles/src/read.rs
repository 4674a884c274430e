//! From text to a value that keeps every rule, or all faults.
//!
//! Fed by: the text of a file or of a `ConfigMap`'s key. Must not: give a value back
//! while anything is wrong with it.

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::check;
use crate::config::{Config, VERSION};
use crate::fault::{Fault, Faults, TOP};
use crate::shape::Shape;
use crate::table;

/// Reads a configuration.
pub fn read(text: &str) -> Result<Config, Faults> {
    let value = yaml(text)?;
    if let Some(fault) = of_others(&value) {
        return Err(Faults(vec![fault]));
    }
    let config: Config = typed(&table::CONFIG, value)?;
    let faults = check::faults(&config);
    if faults.is_empty() {
        Ok(config)
    } else {
        Err(Faults(faults))
    }
}

/// Reads YAML, or JSON, as one value.
pub(crate) fn yaml(text: &str) -> Result<Value, Faults> {
    serde_saphyr::from_str(text).map_err(|error| {
        let place = error.location().map_or_else(
            || TOP.to_owned(),
            |at| format!("line {}, column {}", at.line(), at.column()),
        );
        let said = error.without_snippet().to_string();
        // The reader's own words, without its options and without the place again.
        let said = said.lines().next().unwrap_or_default();
        let said = said.split(" at line ").next().unwrap_or_default();
        let said = said.split(", set ").next().unwrap_or_default();
        Faults(vec![Fault::bare(
            place,
            format!("cannot be read ({said})"),
            "one YAML document, each key once",
        )])
    })
}

/// A value of this shape as its type.
pub(crate) fn typed<T: DeserializeOwned>(shape: &Shape, value: Value) -> Result<T, Faults> {
    let mut faults = Vec::new();
    shape.check(&value, TOP, &mut faults);
    if !faults.is_empty() {
        return Err(Faults(faults));
    }
    serde_json::from_value(value).map_err(|error| {
        let what = format!("cannot be read ({error})");
        Faults(vec![Fault::bare(TOP, what, shape.says())])
    })
}

/// A file of another project gets one line that helps, not one for each key.
fn of_others(value: &Value) -> Option<Fault> {
    let whose = if value.get("mig-configs").is_some() {
        "mig-parted"
    } else if value.get("nodeconfig").is_some() || value.get("nvidia").is_some() {
        "hami"
    } else if value.get("sharing").is_some() || value.get("flags").is_some() {
        "nvidia"
    } else {
        return None;
    };
    let what = format!("is a file of another format ({whose})");
    let accepted = format!(
        "apiVersion {VERSION}; make one with: kubectl-aliquot config convert --from {whose} FILE"
    );
    Some(Fault::bare(TOP, what, accepted))
}
