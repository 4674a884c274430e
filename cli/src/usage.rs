//! What is used of GPUs and shares now, from `GET /usage` of the nodes' monitors. What is not measured
//! is unknown, never 0.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use aliquot_core::measured::{GpuUsage, NodeUsage, ShareUsage, Used};
use aliquot_core::{GpuUuid, NodeName};
use serde::Serialize;

use crate::agents::Answers;
use crate::table::some;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Those whose monitor answered, by name.
    pub nodes: Vec<NodeUsage>,
    /// Why a node is missing.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub missing: BTreeMap<NodeName, String>,
}

impl Usage {
    pub(crate) fn read(answers: Answers) -> Self {
        let mut usage = Self {
            nodes: Vec::new(),
            missing: answers.missing,
        };
        for (node, text) in answers.texts {
            match serde_json::from_str(&text) {
                Ok(read) => usage.nodes.push(NodeUsage { node, ..read }),
                Err(error) => {
                    let why = format!("/usage of the monitor: {error}");
                    usage.missing.insert(node, why);
                }
            }
        }
        usage.nodes.sort_by(|a, b| a.node.cmp(&b.node));
        usage
    }

    fn of_node(&self, node: &NodeName) -> Option<&NodeUsage> {
        let at = self.nodes.binary_search_by(|one| one.node.cmp(node));
        self.nodes.get(at.ok()?)
    }

    /// A GPU or a MIG instance of this node, where it was measured.
    pub(crate) fn gpu(&self, node: &NodeName, gpu: &GpuUuid) -> Option<&GpuUsage> {
        let mut gpus = self.of_node(node)?.gpus.iter();
        gpus.find(|one| one.gpu == *gpu)
    }

    /// The shares of these devices of this node.
    pub(crate) fn on<'a>(
        &'a self,
        node: &NodeName,
        devices: &'a BTreeSet<&'a GpuUuid>,
    ) -> impl Iterator<Item = &'a ShareUsage> + use<'a> {
        let node = self.of_node(node).into_iter();
        let shares = node.flat_map(|node| &node.shares);
        shares.filter(move |share| devices.contains(&share.name.device))
    }

    pub(crate) fn of_pod(
        &self,
        node: &NodeName,
        (namespace, pod): (&str, &str),
        device: &GpuUuid,
    ) -> Option<Used> {
        let devices = [device].into();
        let own = self
            .on(node, &devices)
            .filter(|share| (&*share.name.namespace, &*share.name.pod) == (namespace, pod));
        own.map(|share| share.used).reduce(Used::plus)
    }

    /// A line for each reason why nodes are missing.
    pub(crate) fn notes(&self) -> String {
        let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (node, why) in &self.missing {
            // A reason begins with its node's name; without it, that of several nodes is the same.
            let why = why.split_once(": ").map_or(why.as_str(), |(_, why)| why);
            reasons.entry(why).or_default().push(node.as_str());
        }
        let mut text = String::new();
        for (why, nodes) in reasons {
            let _ = writeln!(text, "what is used is unknown on {}: {why}", some(nodes));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use aliquot_core::Mib;
    use serde_json::json;

    use super::*;

    #[test]
    fn reports_an_answer_that_cannot_be_read() {
        let usage = Usage::read(Answers {
            texts: vec![("n1".into(), "no sample yet".to_owned())],
            missing: BTreeMap::new(),
        });
        let note = "what is used is unknown on n1: expected ident at line 1 column 2\n";
        assert_eq!(usage.notes(), note);
    }

    #[test]
    fn finds_what_a_node_measures_whichever_answers_first() {
        let answer = |node: &str, memory: u64| {
            let gpu = json!({"gpu": format!("GPU-{node}"), "memory": memory});
            let answer = json!({"node": node, "taken_at": 1, "gpus": [gpu], "shares": []});
            (node.into(), answer.to_string())
        };
        let usage = Usage::read(Answers {
            texts: vec![answer("n2", 2), answer("n1", 1)],
            missing: BTreeMap::new(),
        });
        for (node, memory) in [("n1", 1), ("n2", 2)] {
            let gpu = format!("GPU-{node}").as_str().into();
            let found = usage.gpu(&node.into(), &gpu);
            assert_eq!(
                found.and_then(|gpu| gpu.memory),
                Some(Mib(memory)),
                "{node}"
            );
        }
    }

    #[test]
    fn names_nodes_of_same_reason_together() {
        let why = |node: &str| format!("cannot reach the monitor of {node}: connection refused");
        let names = ["n1", "n2", "n3", "n4", "n5", "n6"].map(|name| (name.into(), why(name)));
        let usage = Usage {
            missing: names.into(),
            ..Usage::default()
        };
        assert_eq!(
            usage.notes(),
            "what is used is unknown on n1, n2, n3, n4, n5 and 1 more: connection refused\n"
        );
        assert_eq!(Usage::default().notes(), "");
    }
}
