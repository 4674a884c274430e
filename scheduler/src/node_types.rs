//! The types of nodes that an autoscaler may add, as an administrator describes them.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use aliquot_core::scale_up::NodeType;
use aliquot_core::{HostResources, Mib, MilliCpu};
use aliquot_k8s::node::label_value;
use aliquot_k8s::pod::host_resources;
use k8s_openapi::api::core::v1::Toleration;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::Deserialize;
use thiserror::Error;

/// The replicas of a GPU where nothing else is written (`deviceSplitCount`).
const REPLICAS: u32 = 10;
/// The most GPUs of a node.
const MOST_GPUS: u32 = 64;

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeTypeSpec {
    /// A name, for logs and as a label of placeholders.
    pub name: String,
    /// The number of its GPUs.
    pub gpus: u32,
    /// NVML's product name of each.
    pub model: String,
    /// Memory of each that may be allocated, in MiB.
    pub gpu_memory: u64,
    #[serde(default = "replicas")]
    pub replicas: u32,
    /// CPU that pods may request; unlimited when absent.
    #[serde(default)]
    pub cpu: Option<Quantity>,
    /// Host memory that pods may request; unlimited when absent.
    #[serde(default)]
    pub memory: Option<Quantity>,
    /// Labels of such nodes, by which the autoscaler selects the type.
    #[serde(default)]
    pub node_selector: BTreeMap<String, String>,
    /// Tolerations for the taints of such nodes that every pod with a share has, too.
    #[serde(default)]
    pub tolerations: Vec<Toleration>,
    /// The autoscaler assumes a new node to be a copy of a running one: with all its labels but the
    /// host name, as cluster-autoscaler does.
    #[serde(default)]
    pub template_from_node: bool,
}

fn replicas() -> u32 {
    REPLICAS
}

/// What is known of a label of nodes of a type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KnownLabel {
    Value(String),
    Present,
    Absent,
    Unknown,
}

impl NodeTypeSpec {
    /// What is known of this label, from the labels by which the type is selected and from what
    /// the agent, or NVIDIA's GPU Feature Discovery, writes for its model.
    pub(crate) fn label(&self, key: &str) -> KnownLabel {
        let product = || label_value(&self.model);
        if let Some(value) = self.node_selector.get(key) {
            KnownLabel::Value(value.clone())
        } else if key == "nvidia.com/gpu.product" {
            KnownLabel::Value(product())
        } else if let Some(other) = key.strip_prefix("aliquot.dev/product.") {
            if other == product() {
                KnownLabel::Present
            } else {
                KnownLabel::Absent
            }
        } else {
            KnownLabel::Unknown
        }
    }

    /// The type, whose GPUs are advertised under this resource.
    pub fn node_type(&self, resource: &str) -> NodeType {
        let amounts = [("cpu", &self.cpu), ("memory", &self.memory)];
        let written = amounts
            .into_iter()
            .filter_map(|(name, amount)| Some((name.to_owned(), amount.clone()?)));
        let host = host_resources(Some(&written.collect()));
        NodeType {
            gpus: self.gpus,
            model: self.model.clone(),
            memory: Mib(self.gpu_memory),
            replicas: self.replicas,
            resource: resource.to_owned(),
            host: HostResources {
                cpu: if self.cpu.is_some() {
                    host.cpu
                } else {
                    MilliCpu(u64::MAX)
                },
                memory: if self.memory.is_some() {
                    host.memory
                } else {
                    Mib(u64::MAX)
                },
            },
        }
    }
}

/// The types, in order of preference. As text, a JSON list.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeTypes(pub Vec<NodeTypeSpec>);

/// Why the text names no types of nodes.
#[derive(Debug, Error)]
pub enum NodeTypesError {
    #[error("not a JSON list of node types: {0}")]
    Json(#[from] serde_json::Error),
    #[error("no node type; expected: at least one")]
    Empty,
    #[error("duplicate node type {0:?}; expected: a unique name for each")]
    Duplicate(String),
    #[error("node type {name:?}, {field}: {value}; expected: {expected}")]
    Range {
        name: String,
        field: &'static str,
        value: u64,
        expected: String,
    },
}

impl FromStr for NodeTypes {
    type Err = NodeTypesError;

    fn from_str(text: &str) -> Result<Self, NodeTypesError> {
        let types: Vec<NodeTypeSpec> = serde_json::from_str(text)?;
        if types.is_empty() {
            return Err(NodeTypesError::Empty);
        }
        let mut names = BTreeSet::new();
        for one in &types {
            if !names.insert(&one.name) {
                return Err(NodeTypesError::Duplicate(one.name.clone()));
            }
            let most_memory = aliquot_core::request::MAX_GPU_MIB;
            for (field, value, most) in [
                ("gpus", one.gpus.into(), MOST_GPUS.into()),
                ("gpuMemory", one.gpu_memory, most_memory),
                ("replicas", one.replicas.into(), u32::MAX.into()),
            ] {
                if !(1..=most).contains(&value) {
                    return Err(NodeTypesError::Range {
                        name: one.name.clone(),
                        field,
                        value,
                        expected: format!("1 to {most}"),
                    });
                }
            }
        }
        Ok(Self(types))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_node_types_or_reports_what_is_wrong() {
        let one = r#"{"name": "a100", "gpus": 8, "model": "NVIDIA A100", "gpuMemory": 81920"#;
        let read = format!(r#"[{one}, "cpu": "96", "nodeSelector": {{"pool": "a"}}}}]"#);
        let read: NodeTypes = read.parse().unwrap();
        let node_type = read.0[0].node_type("nvidia.com/gpu");
        assert_eq!((node_type.gpus, node_type.replicas), (8, 10));
        assert_eq!(node_type.host.cpu, MilliCpu(96_000));
        assert_eq!(node_type.host.memory, Mib(u64::MAX));
        for (text, expected) in [
            ("[]".to_owned(), "no node type; expected: at least one"),
            (
                format!("[{one}}}, {one}}}]"),
                "duplicate node type \"a100\"; expected: a unique name for each",
            ),
            (
                format!("[{one}}}]").replace("8,", "65,"),
                "node type \"a100\", gpus: 65; expected: 1 to 64",
            ),
            (
                format!("[{one}}}]").replace("81920", "0"),
                "node type \"a100\", gpuMemory: 0; expected: 1 to 1048576",
            ),
        ] {
            let error = text.parse::<NodeTypes>().unwrap_err().to_string();
            assert_eq!(error, expected);
        }
        let unknown = format!(r#"[{one}, "gpu": 1}}]"#).parse::<NodeTypes>();
        assert!(
            unknown
                .unwrap_err()
                .to_string()
                .contains("unknown field `gpu`")
        );
    }
}
