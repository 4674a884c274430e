//! `config`: `validate`, `convert` and `show`.

use std::fmt::Write as _;
use std::path::PathBuf;

use aliquot_core::inventory::{INVENTORY, Inventory};
use aliquot_core::{Mib, Percent};
use aliquot_profiles::convert::convert;
use aliquot_profiles::mode::{
    DefaultShare, InstanceSharing, MAX_MPS_CLIENTS, MAX_MPS_CLIENTS_BEFORE_VOLTA, Mode, Mps,
};
use aliquot_profiles::mps::even_share;
use aliquot_profiles::{Profile, read};
use anyhow::{Context as _, Result};
use clap::{Args, Subcommand, ValueEnum};
use k8s_openapi::api::core::v1::Node;
use kube::Api;

use crate::access::Access;
use crate::input::text;
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

impl Validate {
    /// One line that summarises a valid file, and one for each mode mps in it; the error of an invalid one is
    /// [`aliquot_profiles::ProfileErrors`].
    pub fn run(&self) -> Result<String> {
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
    pub fn run(&self) -> Result<String> {
        Ok(convert(&text(&self.file)?, &self.name)?.to_yaml()?)
    }
}

impl Show {
    /// The node's effective profile, as YAML.
    pub async fn run(&self) -> Result<String> {
        let api: Api<Node> = Api::all(self.access.client().await?);
        let node = &*self.node;
        let found = api.get(node).await;
        let found = found.with_context(|| format!("cannot get node {node}"))?;
        self.output.text(effective(&found, node)?)
    }
}

impl Form {
    /// The YAML of a configuration in this form.
    fn text(self, yaml: String) -> Result<String> {
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
pub fn effective(found: &Node, node: &str) -> Result<String> {
    let annotations = found.metadata.annotations.as_ref();
    let text = annotations.and_then(|all| all.get(INVENTORY));
    let text = text.with_context(|| {
        format!("node {node} has no annotation {INVENTORY}; check that Aliquot's agent runs on it")
    })?;
    let inventory = Inventory::decode(text)
        .with_context(|| format!("annotation {INVENTORY} of node {node} cannot be read"))?;
    Ok(aliquot_profiles::effective::effective(node, &inventory)?.to_yaml()?)
}
