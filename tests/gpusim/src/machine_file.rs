//! The YAML form of a machine. Every key is checked; the error for an unknown key names it.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::assemble::{add_group, add_link, set_default_levels};
use crate::catalog;
use crate::edit::EditError;
use crate::model::{self, Machine};

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct MachineFile {
    /// Makes UUIDs and serial numbers differ between machines.
    #[serde(default)]
    name: String,
    #[serde(default = "default_driver")]
    driver: String,
    /// Default: `13.` and the driver's version.
    nvml: Option<String>,
    #[serde(default = "default_cuda")]
    cuda: String,
    /// The node's folder of device nodes; without it the environment of a process stands for them.
    #[serde(default)]
    dev: String,
    gpus: Vec<Group>,
    #[serde(default)]
    links: Vec<Link>,
}

/// `count` identical GPUs.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Group {
    #[serde(default = "one")]
    pub(crate) count: usize,
    pub(crate) model: String,
    /// One for each GPU; default: made from the machine's name and the index.
    #[serde(default)]
    pub(crate) uuids: Vec<String>,
    /// NUMA node; default 0.
    pub(crate) numa: Option<i32>,
    pub(crate) memory_mib: Option<u64>,
    pub(crate) reserved_mib: Option<u64>,
    /// Initial values of the fields of `gpusim set`.
    #[serde(default)]
    pub(crate) set: BTreeMap<String, Scalar>,
}

#[derive(Deserialize)]
#[serde(untagged)]
pub(crate) enum Scalar {
    /// YAML's value of `on` and `off`.
    Switch(bool),
    Number(i64),
    Text(String),
}

impl Scalar {
    /// As `gpusim set` takes it.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Switch(on) => if *on { "on" } else { "off" }.to_owned(),
            Self::Number(number) => number.to_string(),
            Self::Text(text) => text.clone(),
        }
    }
}

/// A pair of GPUs that are nearer than the default, or joined directly.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Link {
    pub(crate) gpus: (usize, usize),
    pub(crate) level: Option<Level>,
    /// Direct `NVLink`s between the two; they replace links to switches.
    #[serde(default)]
    pub(crate) nvlinks: usize,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Level {
    Internal = 0,
    Single = 10,
    Multiple = 20,
    HostBridge = 30,
    Node = 40,
    System = 50,
}

fn default_driver() -> String {
    "580.82.07".to_owned()
}

fn default_cuda() -> String {
    "13.0".to_owned()
}

fn one() -> usize {
    1
}

/// Why a machine file was rejected.
#[derive(Debug, thiserror::Error)]
pub enum MachineFileError {
    /// Not YAML of this form.
    #[error("machine file: {0}")]
    Yaml(String),
    /// A model without defaults.
    #[error(
        "gpus[{group}].model: {given:?} is unknown; expected one of: {}",
        model_names()
    )]
    UnknownModel {
        /// Place in `gpus`.
        group: usize,
        /// The given text.
        given: String,
    },
    /// An invalid value.
    #[error("{field}: {value} is invalid; expected: {expected}")]
    BadValue {
        /// The key.
        field: String,
        /// The given value.
        value: String,
        /// The accepted values.
        expected: String,
    },
    /// An initial value was rejected.
    #[error("gpus[{group}].set: {source}")]
    Set {
        /// Place in `gpus`.
        group: usize,
        /// The reason.
        source: EditError,
    },
}

fn model_names() -> String {
    catalog::MODELS.map(|model| model.name).join(", ")
}

pub(crate) fn invalid(
    field: impl Into<String>,
    value: &(impl ToString + ?Sized),
    expected: impl Into<String>,
) -> MachineFileError {
    MachineFileError::BadValue {
        field: field.into(),
        value: value.to_string(),
        expected: expected.into(),
    }
}

/// The machine that a YAML text describes. GPUs for which it names no profile get `profile`.
pub fn parse(yaml: &str, profile: Option<&str>) -> Result<Box<Machine>, MachineFileError> {
    let file: MachineFile =
        serde_saphyr::from_str(yaml).map_err(|e| MachineFileError::Yaml(e.to_string()))?;
    let mut machine: Box<Machine> = bytemuck::allocation::zeroed_box();
    let nvml = file
        .nvml
        .clone()
        .unwrap_or_else(|| format!("13.{}", file.driver));
    machine.driver = short("driver", &file.driver)?;
    machine.nvml = short("nvml", &nvml)?;
    machine.cuda = cuda_number(&file.cuda)?;
    machine.dev = short("dev", &file.dev)?;
    machine.next_xid = 1;

    for (number, group) in file.gpus.iter().enumerate() {
        add_group(&mut machine, &file.name, number, group, profile)?;
    }
    set_default_levels(&mut machine);
    for (number, link) in file.links.iter().enumerate() {
        add_link(&mut machine, number, link)?;
    }
    Ok(machine)
}

pub(crate) fn short<const N: usize>(field: &str, value: &str) -> Result<[u8; N], MachineFileError> {
    model::padded(value)
        .ok_or_else(|| invalid(field, value, format!("text of less than {N} bytes")))
}

fn cuda_number(text: &str) -> Result<u32, MachineFileError> {
    let parts = text.split_once('.');
    let numbers = parts.and_then(|(a, b)| Some((a.parse::<u16>().ok()?, b.parse::<u8>().ok()?)));
    match numbers {
        Some((major, minor)) if minor < 100 => Ok(1000 * u32::from(major) + 10 * u32::from(minor)),
        _ => Err(invalid(
            "cuda",
            text,
            "major.minor, quoted, such as \"13.0\"",
        )),
    }
}
