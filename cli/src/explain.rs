//! `explain`: why a pod is pending, or where it runs; [`what_if`]: where a pod would go.

pub mod what_if;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use aliquot_core::explain::{GpuAnswer, NodeAnswer, PodAnswer, PodHeader};
use aliquot_core::request_annotation::REQUEST;
use aliquot_core::top::DeviceAmount;
use anyhow::{Context as _, Result};
use clap::Args;

use crate::access::{Access, AccessError};
use crate::input;
use crate::output::Output;
use crate::snapshot;
use crate::table::{aligned, counted, dash, some};
use crate::target::parse_pod;

/// The flags of `explain`.
#[derive(Debug, Args)]
pub struct Explain {
    /// Name of the pod, with or without pod/ before it
    #[arg(value_name = "POD", value_parser = parse_pod, required_unless_present = "filename")]
    pub pod: Option<String>,
    /// Where the pod of this manifest would go now; - reads standard input
    #[arg(short, long, value_name = "FILE", conflicts_with = "pod")]
    pub filename: Option<PathBuf>,
    /// Namespace of the pod; defaults to that of the manifest, then of the context
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// Maximum number of nodes in the table
    #[arg(long, default_value_t = 20)]
    pub nodes: usize,
    /// Output format; wide shows all nodes
    #[arg(short, long, value_enum, default_value = "table")]
    pub output: Output,
    #[command(flatten)]
    pub access: Access,
}

impl Explain {
    pub async fn run(&self) -> Result<String> {
        if let Some(path) = &self.filename {
            return self.what_if(path).await;
        }
        let pod = self.pod.as_deref().context("expected: POD or --filename")?;
        let namespace = self.access.namespace(self.namespace.as_deref()).await?;
        let answer = ask(&self.access, &namespace, pod).await?;
        let table = |wide| table(&answer, self.most(wide));
        Ok(self.output.text(&answer, table)?)
    }

    /// The same for a pod that does not exist yet.
    async fn what_if(&self, path: &Path) -> Result<String> {
        let mut pod =
            what_if::manifest(&input::text(path)?).with_context(|| path.display().to_string())?;
        let own = pod.metadata.namespace.as_deref();
        let named = self.namespace.as_deref().or(own);
        pod.metadata.namespace = Some(self.access.namespace(named).await?);
        let (nodes, pods) = self.access.snapshot().await?;
        let (settings, policies) = snapshot::scheduler(&pods)?;
        let answer = what_if::what_if(&nodes, &pods, &pod, &settings, policies)?;
        let table = |wide| what_if::table(&answer, self.most(wide));
        Ok(self.output.text(&answer, table)?)
    }

    fn most(&self, wide: bool) -> usize {
        if wide { usize::MAX } else { self.nodes }
    }
}

/// The scheduler's answer for a pod.
pub(crate) async fn ask(
    access: &Access,
    namespace: &str,
    pod: &str,
) -> Result<PodAnswer, AccessError> {
    access.ask(&format!("/explain/{namespace}/{pod}")).await
}

/// The answer for a pod; at most `most` nodes, those that fit first.
pub fn table(answer: &PodAnswer, most: usize) -> String {
    let head = &answer.head;
    let mut text = asks(head);
    if let Some(placement) = &head.placement {
        let state = if placement.confirmed {
            "Bound to"
        } else {
            "Being bound to"
        };
        let _ = writeln!(text, "{state} {} with", placement.node);
        match &placement.gpus {
            None => text.push_str("  an allocation that cannot be read\n"),
            Some(gpus) => {
                for (gpu, amount) in gpus {
                    let _ = writeln!(text, "  {gpu}: {}, {}", amount.memory, amount.cores);
                }
            }
        }
        return text;
    }
    match &head.refused {
        Some(refused) => {
            let _ = writeln!(
                text,
                "Refused {} in {}, last {} ago: {}",
                counted(refused.times, "time", "times"),
                span(refused.first_seconds_ago - refused.last_seconds_ago),
                span(refused.last_seconds_ago),
                refused.text
            );
        }
        None => text.push_str("Not refused since this scheduler started.\n"),
    }
    if let Some(condition) = &head.condition {
        let (reason, message) = (&condition.reason, &condition.message);
        let _ = writeln!(text, "Not scheduled ({reason}): {message}");
    }
    text.push_str(&nodes_table(answer, most));
    text
}

/// The names of the nodes that fit, by whether kube-scheduler offers them.
fn fitting(answer: &PodAnswer, offered: bool) -> Option<String> {
    let nodes = answer.nodes.iter();
    let fitting = nodes.filter(|node| node.fits && node.offered == offered);
    let names = some(fitting.map(|node| node.node.as_str()));
    (!names.is_empty()).then_some(names)
}

/// How many nodes the pod fits, and a table of at most `most` nodes.
pub(crate) fn nodes_table(answer: &PodAnswer, most: usize) -> String {
    let tail = &answer.tail;
    let mut text = String::new();
    let _ = write!(
        text,
        "Nodes that fit now: {} of {} offered",
        tail.fitting, tail.offered
    );
    if let Some(names) = fitting(answer, true) {
        let _ = write!(text, " ({names})");
    }
    if !tail.why.is_empty() {
        let _ = write!(text, "; reasons of the others: {}", tail.why);
    }
    if let Some(names) = fitting(answer, false) {
        let _ = write!(
            text,
            "\nGPUs fit, but kube-scheduler does not offer: {names}"
        );
    }
    text.push_str("\n\n");
    let mut nodes: Vec<&NodeAnswer> = answer.nodes.iter().collect();
    nodes.sort_by_key(|node| (!node.offered, !node.fits));
    let rows: Vec<_> = nodes.iter().take(most).flat_map(|n| answers(n)).collect();
    let head = "NODE|GPU|MODEL|FREE MIB|FREE CORES|FREE REPLICAS|NEEDS MIB|NEEDS CORES|ANSWER";
    text.push_str(&aligned(head, &rows));
    if nodes.len() > most {
        let more = nodes.len() - most;
        let _ = writeln!(
            text,
            "... and {}; use --nodes to show more",
            counted(more, "more node", "more nodes")
        );
    }
    text
}

/// A pod and what its containers request.
pub(crate) fn asks(head: &PodHeader) -> String {
    let mut text = format!("{}/{}", head.namespace, head.name);
    if head.annotated {
        let _ = write!(text, " (request in annotation {REQUEST})");
    }
    for asked in &head.requests {
        let (stage, count) = (&asked.stage, asked.count);
        let _ = write!(
            text,
            "\n  {stage} container {} requests {count} x {}({}, {})",
            asked.container,
            other(&asked.resource),
            asked.memory,
            asked.cores
        );
    }
    let amounts = head.burst.into_iter().flat_map(|burst| {
        let (memory, cores) = (burst.memory, burst.cores);
        let memory = memory.map(|limit| limit.to_string());
        [memory, cores.map(|limit| format!("{limit} compute"))]
    });
    let limits: Vec<String> = amounts.flatten().collect();
    if !limits.is_empty() {
        let _ = write!(
            text,
            "\n  each share may use up to {} while its GPU has it idle",
            limits.join(" and ")
        );
    }
    text.push('\n');
    text
}

/// The name of a resource other than the usual one.
fn other(resource: &str) -> String {
    match resource {
        "" | "nvidia.com/gpu" => String::new(),
        other => format!("{other} "),
    }
}

fn answers(node: &NodeAnswer) -> Vec<Vec<String>> {
    let mut remark = String::new();
    if !node.offered {
        remark.push_str(" (not offered by kube-scheduler)");
    }
    if node.gpus.is_empty() {
        let mut row = vec![node.node.to_string()];
        row.extend(std::iter::repeat_n("-".to_owned(), 7));
        row.push(format!("{}{remark}", node.why));
        return vec![row];
    }
    let row = |gpu: &GpuAnswer| {
        let needs = |of: fn(&DeviceAmount) -> String| gpu.needs.as_ref().map_or_else(dash, of);
        let whole = if gpu.answer == aliquot_core::explain::NOT_ASKED {
            &node.why
        } else {
            &gpu.answer
        };
        vec![
            node.node.to_string(),
            gpu.index.to_string(),
            gpu.model.clone(),
            gpu.left.memory.0.to_string(),
            gpu.left.cores.0.to_string(),
            gpu.left.replicas.to_string(),
            needs(|amount| amount.memory.0.to_string()),
            needs(|amount| amount.cores.0.to_string()),
            match gpu.detail.as_str() {
                "" => format!("{whole}{remark}"),
                detail => format!("{whole} ({detail}){remark}"),
            },
        ]
    };
    node.gpus.iter().map(row).collect()
}

/// Seconds, minutes or hours, rounded down.
fn span(seconds: f64) -> String {
    let format = |value: f64, unit: &str| format!("{:.0}{unit}", value.floor());
    match seconds {
        s if s < 120.0 => format(s, "s"),
        s if s < 7200.0 => format(s / 60.0, "m"),
        s => format(s / 3600.0, "h"),
    }
}
