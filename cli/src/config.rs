//! `config`: `validate`, `convert` and `show`.

use std::fmt::Write as _;
use std::path::PathBuf;

use aliquot_core::inventory::{INVENTORY, Inventory};
use aliquot_core::{Mib, Percent};
use aliquot_profiles::convert::{ConvertError, convert};
use aliquot_profiles::mode::{
    DefaultShare, InstanceSharing, MAX_MPS_CLIENTS, MAX_MPS_CLIENTS_BEFORE_VOLTA, Mode, Mps,
};
use aliquot_profiles::mps::even_share;
use aliquot_profiles::{Profile, ProfileErrors, read};
use clap::{Args, Subcommand, ValueEnum};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use thiserror::Error;

use crate::access::{Access, AccessError};
use crate::input::{InputError, text};
use crate::output::with_causes;
use crate::table::counted;

/// The subcommands of `config`.
#[derive(Debug, Subcommand)]
pub enum Config {
    /// Check a configuration: one line for each error, or what each MPS client would get
    Validate(Validate),
    /// Convert a configuration of NVIDIA's device plugin to Aliquot's format
    Convert(Convert),
    /// Print the current sharing modes of a node's GPUs, as a configuration to edit
    Show(Box<Show>),
}

/// The flags of `config validate`.
#[derive(Debug, Args)]
pub struct Validate {
    /// Path of the configuration; - reads standard input
    pub file: PathBuf,
}

/// The flags of `config convert`.
#[derive(Debug, Args)]
pub struct Convert {
    /// Path of the configuration; - reads standard input
    pub file: PathBuf,
    /// Name of the profile
    #[arg(long, default_value = "nvidia")]
    pub name: String,
}

/// The flags of `config show`.
#[derive(Debug, Args)]
pub struct Show {
    /// Name of the node
    pub node: String,
    /// Output format
    #[arg(short, long, value_enum, default_value = "yaml")]
    pub output: Form,
    #[command(flatten)]
    access: Access,
}

/// The format in which a configuration is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// YAML
    Yaml,
    /// JSON
    Json,
}

#[derive(Debug, Error)]
pub enum ConfigError {
    #[error(transparent)]
    Read(#[from] InputError),
    #[error(transparent)]
    Invalid(#[from] ProfileErrors),
    #[error(transparent)]
    Convert(#[from] ConvertError),
    #[error(transparent)]
    Write(#[from] aliquot_profiles::config::WriteError),
    #[error("the profile cannot be written as JSON: {0}")]
    Json(#[from] serde_saphyr::Error),
    #[error(transparent)]
    Access(#[from] AccessError),
    #[error("cannot get node {node}: {why}")]
    Node { node: String, why: String },
    #[error("node {node} has no annotation {INVENTORY}; check that Aliquot's agent runs on it")]
    NoInventory { node: String },
    #[error("annotation {INVENTORY} of node {node} cannot be read: {why}")]
    Inventory { node: String, why: String },
}

impl Validate {
    /// One line that summarises a valid file, and one for each mode mps in it.
    pub fn run(&self) -> Result<String, ConfigError> {
        let config = read(&text(&self.file)?)?;
        let names: Vec<&str> = config.profiles.keys().map(String::as_str).collect();
        let profiles = match names[..] {
            [] => "no profiles".to_owned(),
            _ => names.join(", "),
        };
        let default = config.default.as_deref().unwrap_or("vgpu on all GPUs");
        let mut lines = format!("valid: {profiles}; default: {default}\n");
        for (name, profile) in &config.profiles {
            mps_clients(&mut lines, name, profile);
        }
        Ok(lines)
    }
}

/// Adds a line for each mode mps of the profile: what each client gets, and how many there may be.
fn mps_clients(lines: &mut String, name: &str, profile: &Profile) {
    let mut line = |path: String, mps: &Mps, most: String| {
        let memory = match mps.memory {
            DefaultShare::Even => format!("1/{} of the memory", mps.replicas),
            DefaultShare::Full => "all memory".to_owned(),
        };
        let cores = match even_share(Mib(0), mps).cores {
            Percent(0) => "all SMs".to_owned(),
            cores => format!("{cores} of the SMs"),
        };
        let clients = counted(mps.replicas, "MPS client", "MPS clients");
        let _ = writeln!(
            lines,
            "{path}: each of {clients} gets {memory} and {cores}; there may be {most}"
        );
    };
    let rules = profile
        .gpus
        .iter()
        .enumerate()
        .map(|(at, rule)| (format!("profiles.{name}.gpus[{at}]"), &rule.mode));
    let rest = profile
        .rest
        .iter()
        .map(|mode| (format!("profiles.{name}.rest"), mode));
    for (path, mode) in rules.chain(rest) {
        match mode {
            Mode::Mps(mps) => {
                let old = MAX_MPS_CLIENTS_BEFORE_VOLTA;
                let most = format!("{MAX_MPS_CLIENTS}, {old} before compute capability 7.0");
                line(path, mps, most);
            }
            Mode::Mig(mig) => {
                for (at, entry) in mig.layout.iter().enumerate() {
                    if let Some(InstanceSharing::Mps(mps)) = &entry.on {
                        let name = &entry.profile;
                        let most = format!("the part of {MAX_MPS_CLIENTS} that {name} is");
                        line(format!("{path}.layout[{at}]"), mps, most);
                    }
                }
            }
            Mode::Vgpu(_) | Mode::Exclusive(_) | Mode::Timeslice(_) | Mode::Unmanaged => {}
        }
    }
}

impl Convert {
    /// The YAML, with notes at its head.
    pub fn run(&self) -> Result<String, ConfigError> {
        Ok(convert(&text(&self.file)?, &self.name)?.to_yaml()?)
    }
}

impl Show {
    /// The node's effective profile, as YAML.
    pub async fn run(&self) -> Result<String, ConfigError> {
        let api: Api<Node> = Api::all(self.access.client().await?);
        let node = self.node.clone();
        let found = api.get(&node).await.map_err(|error| ConfigError::Node {
            node: node.clone(),
            why: with_causes(&error),
        })?;
        self.output.text(effective(&found, &node)?)
    }
}

impl Form {
    /// The YAML of a configuration in this form.
    fn text(self, yaml: String) -> Result<String, ConfigError> {
        match self {
            Self::Yaml => Ok(yaml),
            Self::Json => {
                let value: serde_json::Value = serde_saphyr::from_str(&yaml)?;
                Ok(format!("{value:#}\n"))
            }
        }
    }
}

/// The sharing modes in a node's inventory, as YAML.
pub fn effective(found: &Node, node: &str) -> Result<String, ConfigError> {
    let node = node.to_owned();
    let annotations = found.metadata.annotations.as_ref();
    let Some(text) = annotations.and_then(|all| all.get(INVENTORY)) else {
        return Err(ConfigError::NoInventory { node });
    };
    let inventory = Inventory::decode(text).map_err(|error| ConfigError::Inventory {
        node: node.clone(),
        why: error.to_string(),
    })?;
    Ok(aliquot_profiles::effective::effective(&node, &inventory)?.to_yaml()?)
}
