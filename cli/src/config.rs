//! `config`: `validate`, `convert` and `show`; and [`plan`].

pub mod plan;

use std::io::Read as _;
use std::path::{Path, PathBuf};

use aliquot_core::inventory::{INVENTORY, Inventory};
use aliquot_profiles::convert::{ConvertError, convert};
use aliquot_profiles::{ProfileErrors, read};
use clap::{Args, Subcommand, ValueEnum};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use thiserror::Error;

use crate::access::{Access, AccessError};
use plan::Plan;

/// The subcommands of `config`.
#[derive(Debug, Subcommand)]
pub enum Config {
    /// Check a configuration: one line for each error, exit code 1
    Validate(Validate),
    /// Convert a configuration of NVIDIA's device plugin to Aliquot's format
    Convert(Convert),
    /// Print the current sharing modes of a node's GPUs, as a configuration to edit
    Show(Show),
    /// Print what each of a number of MPS clients of a GPU or MIG instance would get
    Plan(Plan),
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

/// Why a command of `config` failed.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// A file.
    #[error("cannot read {path}: {source}")]
    Read {
        /// Its path.
        path: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// What is wrong with its content.
    #[error(transparent)]
    Invalid(#[from] ProfileErrors),
    /// The result of a conversion.
    #[error(transparent)]
    Convert(#[from] ConvertError),
    /// The effective profile.
    #[error(transparent)]
    Write(#[from] aliquot_profiles::config::WriteError),
    /// The effective profile again.
    #[error("the profile cannot be written as JSON: {0}")]
    Json(#[from] serde_saphyr::Error),
    /// The cluster.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The node.
    #[error("cannot get node {node}: {source}")]
    Node {
        /// Its name.
        node: String,
        /// The API server's error.
        source: Box<kube::Error>,
    },
    /// Its agent has published no inventory.
    #[error("node {node} has no annotation {INVENTORY}; check that Aliquot's agent runs on it")]
    NoInventory {
        /// Its name.
        node: String,
    },
    /// Its inventory.
    #[error("annotation {INVENTORY} of node {node} cannot be read: {why}")]
    Inventory {
        /// Its name.
        node: String,
        /// The error.
        why: String,
    },
}

impl Validate {
    /// One line that summarises a valid file.
    pub fn run(&self) -> Result<String, ConfigError> {
        let config = read(&text(&self.file)?)?;
        let names: Vec<&str> = config.profiles.keys().map(String::as_str).collect();
        let names = match names[..] {
            [] => "no profiles".to_owned(),
            _ => names.join(", "),
        };
        let default = config.default.as_deref();
        let default = default.unwrap_or("vgpu on all GPUs");
        Ok(format!("valid: {names}; default: {default}"))
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
        let found = api.get(&node).await.map_err(|source| ConfigError::Node {
            node: node.clone(),
            source: Box::new(source),
        })?;
        self.output.of(effective(&found, &node)?)
    }
}

impl Form {
    /// The YAML of a configuration in this form.
    fn of(self, yaml: String) -> Result<String, ConfigError> {
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

fn text(path: &Path) -> Result<String, ConfigError> {
    let read = if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(path)
    };
    read.map_err(|source| ConfigError::Read {
        path: path.display().to_string(),
        source,
    })
}
