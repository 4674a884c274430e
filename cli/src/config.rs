//! `config validate`, `convert` and `show`.
//!
//! Fed by: files that the command line names, and a node of a living cluster.
//! Must not: write anything, or know what a configuration means; that is
//! `aliquot-profiles`.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use aliquot_core::inventory::{INVENTORY, Inventory};
use aliquot_profiles::convert::{self, ConvertError};
use aliquot_profiles::{Fault, Faults, read, shown};
use clap::{Args, Subcommand, ValueEnum};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use thiserror::Error;

use crate::live::{Access, LiveError};
use crate::plan::Plan;

/// What can be done with a configuration.
#[derive(Debug, Subcommand)]
pub enum Config {
    /// Say what is wrong with a configuration: a line for each fault, exit code 1
    Validate(Validate),
    /// Print another project's configuration as one of Aliquot's
    Convert(Convert),
    /// Print what a node does with its GPUs, as a configuration to edit
    Show(Show),
    /// Print what each of so many MPS clients of a card or instance would get
    Plan(Plan),
}

/// The flags of `config validate`.
#[derive(Debug, Args)]
pub struct Validate {
    /// The configuration; - reads standard input
    pub file: PathBuf,
}

/// The flags of `config convert`.
#[derive(Debug, Args)]
pub struct Convert {
    /// Whose configuration it is
    #[arg(long, value_enum)]
    pub from: Origin,
    /// The configuration; - reads standard input
    pub file: PathBuf,
    /// With --from nvidia: the profile's name
    #[arg(long, default_value = "nvidia")]
    pub name: String,
    /// With --from hami: the file with settings of single nodes
    #[arg(long, value_name = "FILE")]
    pub node_config: Option<PathBuf>,
}

/// The flags of `config show`.
#[derive(Debug, Args)]
pub struct Show {
    /// The node
    pub node: String,
    /// What is printed
    #[arg(short, long, value_enum, default_value = "yaml")]
    pub output: Form,
    #[command(flatten)]
    access: Access,
}

/// In which form a configuration is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// YAML
    Yaml,
    /// JSON
    Json,
}

/// Whose configuration a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Origin {
    /// NVIDIA's device plugin, version v1
    Nvidia,
    /// mig-parted, or the GPU operator's MIG manager
    MigParted,
    /// HAMi's device-config.yaml
    Hami,
}

/// Why nothing is printed.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// A file.
    #[error("cannot read {path}: {source}")]
    Read {
        /// Its path.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// What is wrong with its content.
    #[error(transparent)]
    Faults(#[from] Faults),
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
    Live(#[from] LiveError),
    /// The node.
    #[error("cannot get node {node}: {source}")]
    Node {
        /// Its name.
        node: String,
        /// What the API server said.
        source: Box<kube::Error>,
    },
    /// Its agent has not reported.
    #[error("node {node} has no annotation {INVENTORY}: does Aliquot's agent run there?")]
    NoInventory {
        /// Its name.
        node: String,
    },
    /// Its report.
    #[error("the annotation {INVENTORY} of node {node} cannot be read: {why}")]
    Inventory {
        /// Its name.
        node: String,
        /// What is wrong.
        why: String,
    },
}

impl Validate {
    /// One line that says what is in a good file.
    pub fn run(&self) -> Result<String, ConfigError> {
        let config = read(&text(&self.file)?)?;
        let names: Vec<&str> = config.profiles.keys().map(String::as_str).collect();
        let names = match names[..] {
            [] => "no profile".to_owned(),
            _ => names.join(", "),
        };
        let default = config.default.as_deref();
        let default = default.unwrap_or("vgpu on all GPUs");
        Ok(format!("good: {names}; default: {default}"))
    }
}

impl Convert {
    /// The YAML, with notes at its head.
    pub fn run(&self) -> Result<String, ConfigError> {
        let file = text(&self.file)?;
        let nodes = self.node_config.as_deref().map(text).transpose()?;
        if nodes.is_some() && self.from != Origin::Hami {
            let what = "is for --from hami alone";
            let fault = Fault::bare("--node-config", what, "no such flag here");
            return Err(Faults(vec![fault]).into());
        }
        let converted = match self.from {
            Origin::Nvidia => convert::nvidia::convert(&file, &self.name),
            Origin::MigParted => convert::mig_parted::convert(&file),
            Origin::Hami => convert::hami::convert(&file, nodes.as_deref()),
        }?;
        Ok(converted.to_yaml()?)
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

/// What this node's agent says of its cards, as YAML.
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
    Ok(shown::effective(&node, &inventory)?.to_yaml()?)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_what_yaml_has() {
        let yaml = "profiles:\n  n1:\n    rest: vgpu\n".to_owned();
        assert_eq!(Form::Yaml.of(yaml.clone()).unwrap(), yaml);
        let json = Form::Json.of(yaml).unwrap();
        let read: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(read["profiles"]["n1"]["rest"], "vgpu");
    }
}
