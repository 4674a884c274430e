//! `simulate`: policies over a trace of pods, or one pod on a live cluster.
//!
//! Over a trace, [`runs`] has each policy place the pods that [`trace`] reads; [`experiment`] checks
//! and measures, [`report`] and [`plot`] show the results. [`what_if`] tries one pod.

pub mod aliquot;
pub mod experiment;
pub mod hami;
pub mod plot;
pub mod published;
pub mod report;
pub mod runs;
#[cfg(test)]
mod tests;
pub mod trace;
pub mod what_if;
pub mod workload;

use std::path::PathBuf;
use std::str::FromStr;

use aliquot_core::score::Policies;
use aliquot_core::{GpuPolicy, Policy as NodePolicy};
use aliquot_k8s::flags::RequestFlags;
use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::json;
use thiserror::Error;

use crate::access::Access;
use report::Summary;
use runs::Policy;
use trace::{Trace, WHOLE};

/// `FIRST..LAST`, both included, or one number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seeds(pub Vec<u64>);

/// Invalid seeds.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{value:?}; expected: a number such as 42, or a range such as 42..51 of at most 1000")]
pub struct UnknownSeeds {
    /// The value.
    pub value: String,
}

impl FromStr for Seeds {
    type Err = UnknownSeeds;

    fn from_str(text: &str) -> Result<Self, UnknownSeeds> {
        let number = |text: &str| text.parse::<u64>().ok();
        let seeds = match text.split_once("..") {
            Some((first, last)) => number(first).zip(number(last)),
            None => number(text).map(|one| (one, one)),
        };
        let sane = seeds.filter(|(first, last)| first <= last && last - first < 1000);
        let (first, last) = sane.ok_or_else(|| UnknownSeeds {
            value: text.to_owned(),
        })?;
        Ok(Self((first..=last).collect()))
    }
}

/// The flags.
#[derive(Clone, Debug, Args)]
pub struct Simulate {
    /// Pods of the trace, a CSV file in the format of openb
    #[arg(long, value_name = "FILE", required_unless_present = "from_cluster")]
    pub pods: Option<PathBuf>,
    /// Nodes of the trace, a CSV file in the format of openb
    #[arg(long, value_name = "FILE", required_unless_present = "from_cluster")]
    pub nodes: Option<PathBuf>,
    /// Seeds for the order of pods and nodes, such as 42..51
    #[arg(long, default_value = "42..51")]
    pub seeds: Seeds,
    /// Policies, separated by commas
    #[arg(long, value_delimiter = ',', required_unless_present = "from_cluster")]
    pub policy: Vec<Policy>,
    /// Load to reach, in percent of all GPUs
    #[arg(long, default_value_t = 130, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub load: u32,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
    /// Also draw allocation and fragmentation against load, as SVG
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// Instead of a trace: report whether one pod would fit the cluster now, where,
    /// and if not, which changes would help
    #[arg(long, requires = "pod", conflicts_with_all = ["pods", "nodes", "policy", "plot"])]
    pub from_cluster: bool,
    /// Manifest of the pod, in YAML or JSON; without a namespace in it, the pod is one of the context's namespace
    #[arg(long, value_name = "FILE", requires = "from_cluster")]
    pub pod: Option<PathBuf>,
    /// Node policy of that cluster's scheduler
    #[arg(long, default_value = "fragmentation")]
    pub node_policy: NodePolicy,
    /// GPU policy of that cluster's scheduler
    #[arg(long, default_value = "fragmentation")]
    pub gpu_policy: GpuPolicy,
    /// Most nodes in the table
    #[arg(long, default_value_t = 20)]
    pub most: usize,
    /// How to reach the cluster
    #[command(flatten)]
    pub access: Access,
    /// Resource names and defaults of that cluster's scheduler
    #[command(flatten)]
    pub request: RequestFlags,
}

impl Simulate {
    /// What the command prints. `progress` is called with the number of runs that are done and the
    /// number of all runs.
    pub async fn run(&self, progress: &(dyn Fn(usize, usize) + Sync)) -> Result<String> {
        if self.from_cluster {
            self.try_pod().await
        } else {
            self.run_policies(progress)
        }
    }

    fn run_policies(&self, progress: &(dyn Fn(usize, usize) + Sync)) -> Result<String> {
        let nodes = self.nodes.as_deref().context("--nodes is missing")?;
        let pods = self.pods.as_deref().context("--pods is missing")?;
        let trace = Trace::read(nodes, pods)?;
        let outcomes = runs::simulate(&trace, &self.policy, &self.seeds.0, self.load, progress)?;
        let summaries: Vec<Summary> = outcomes.iter().map(Summary::of).collect();
        if let Some(path) = &self.plot {
            std::fs::write(path, plot::svg(&summaries))
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        if !self.json {
            return Ok(report::table(&summaries));
        }
        let report = json!({
            "pods": pods,
            "nodes": nodes,
            "gpus": trace.capacity() / WHOLE,
            "seeds": self.seeds.0,
            "load": self.load,
            "policies": summaries,
        });
        Ok(serde_json::to_string_pretty(&report)? + "\n")
    }

    async fn try_pod(&self) -> Result<String> {
        let path = self.pod.as_deref().context("--pod is missing")?;
        let text = std::fs::read_to_string(path);
        let text = text.with_context(|| format!("cannot read {}", path.display()))?;
        let mut pod = what_if::manifest(&text).with_context(|| path.display().to_string())?;
        let named = pod.metadata.namespace.as_deref();
        pod.metadata.namespace = Some(self.access.namespace(named).await?);
        let (nodes, pods) = self.access.snapshot().await?;
        let policies = Policies {
            node: self.node_policy,
            gpu: self.gpu_policy,
            ..Policies::default()
        };
        let settings = self.request.settings()?;
        let answer = what_if::what_if(&nodes, &pods, &pod, &settings, policies)?;
        if self.json {
            Ok(serde_json::to_string_pretty(&answer)? + "\n")
        } else {
            Ok(what_if::table(&answer, self.most))
        }
    }
}
