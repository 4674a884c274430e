//! The command `simulate`: runs policies over a trace, for several seeds.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};

use aliquot_core::{GpuPolicy, Policy as NodePolicy};
use aliquot_k8s::flags::RequestFlags;
use clap::{Args, ValueEnum};
use thiserror::Error;

use crate::aliquot::{Aliquot, CpuOnly, TypicalSource};
use crate::experiment::{self, Misplaced, Run};
use crate::hami::Hami;
use crate::live::Access;
use crate::placer::Placer;
use crate::published::{Published, PublishedPolicy};
use crate::trace::{Trace, TraceError};
use crate::typical::Typical;
use crate::workload::Workload;

/// A policy to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Policy {
    /// Published: any node, any GPU
    Random,
    /// Published: alignment of what is left with the request
    Dotprod,
    /// Published: nodes with the same kind of request
    Clustering,
    /// Published: used GPUs before free GPUs before free nodes
    Packing,
    /// Published: least left over
    Bestfit,
    /// Published: fragmentation gradient descent
    Fgd,
    /// Aliquot: its own filter, prioritize and ledger, for all pods
    Ours,
    /// Aliquot, which learns the typical pods from those it placed
    OursLearning,
    /// Aliquot, while pods without GPU go where kube-scheduler's `LeastAllocated` says
    OursCpuDefault,
    /// The same, with Aliquot's entry for pods without GPU beside `LeastAllocated`
    OursCpuEntry,
    /// A model of stock HAMi: node binpack, GPU spread; pods without GPU by kube-scheduler's default
    Hami,
}

impl Policy {
    /// As it is written in flags and tables.
    pub fn name(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |value| value.get_name().to_owned())
    }

    fn placer<'a>(
        self,
        trace: &'a Trace,
        workload: &Workload,
        typical: &Typical,
        seed: u64,
    ) -> Box<dyn Placer + 'a> {
        let published = |policy| Box::new(PublishedPolicy::new(policy, typical.clone(), seed));
        let ours = |cpu_only, knows| {
            let manner = (cpu_only, knows);
            Box::new(Aliquot::new(trace, &workload.nodes, manner, seed))
        };
        match self {
            Self::Random => published(Published::Random),
            Self::Dotprod => published(Published::DotProd),
            Self::Clustering => published(Published::Clustering),
            Self::Packing => published(Published::Packing),
            Self::Bestfit => published(Published::BestFit),
            Self::Fgd => published(Published::Fgd),
            Self::Ours => ours(CpuOnly::Ranked, TypicalSource::Trace),
            Self::OursLearning => ours(CpuOnly::Ranked, TypicalSource::Ledger),
            Self::OursCpuDefault => ours(CpuOnly::LeastAllocated, TypicalSource::Trace),
            Self::OursCpuEntry => ours(CpuOnly::LeastAllocatedAndRanked, TypicalSource::Trace),
            Self::Hami => Box::new(Hami),
        }
    }
}

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
    /// Manifest of the pod, in YAML or JSON
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

/// One policy's runs, in the order of the seeds.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The policy's name.
    pub policy: String,
    /// One for each seed.
    pub runs: Vec<(u64, Run)>,
}

/// Why there is no outcome.
#[derive(Debug, Error)]
pub enum SimulateError {
    /// A file.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A policy placed a pod where it does not fit.
    #[error("policy {policy}, seed {seed}")]
    Misplaced {
        /// Which policy.
        policy: String,
        /// Which seed.
        seed: u64,
        /// What it did.
        source: Misplaced,
    },
}

/// Runs every policy with every seed, on all processors. `progress` is called with the number of runs
/// that are done and the number of all runs.
pub fn simulate(
    trace: &Trace,
    policies: &[Policy],
    seeds: &[u64],
    load: u32,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Vec<Outcome>, SimulateError> {
    let typical = Typical::of(&trace.pods);
    let jobs: Vec<(Policy, u64)> = policies
        .iter()
        .flat_map(|policy| seeds.iter().map(|seed| (*policy, *seed)))
        .collect();
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        let mut results = Vec::new();
        while let Some((at, (policy, seed))) = take(&next, &jobs) {
            let workload = Workload::of(trace, seed, load);
            let mut placer = policy.placer(trace, &workload, &typical, seed);
            let run = experiment::run(trace, workload, &typical, &mut *placer, load);
            results.push((at, run));
            progress(done.fetch_add(1, Ordering::Relaxed) + 1, jobs.len());
        }
        results
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut results = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads.min(jobs.len()))
            .map(|_| scope.spawn(work))
            .collect();
        let joined = threads.into_iter().map(|thread| {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        joined.flatten().collect::<Vec<_>>()
    });
    results.sort_unstable_by_key(|(at, _)| *at);
    let mut outcomes: Vec<Outcome> = policies
        .iter()
        .map(|policy| Outcome {
            policy: policy.name(),
            runs: Vec::new(),
        })
        .collect();
    for (at, run) in results {
        let (policy, seed) = (policies[at / seeds.len()].name(), seeds[at % seeds.len()]);
        let run = run.map_err(|source| SimulateError::Misplaced {
            policy,
            seed,
            source,
        })?;
        outcomes[at / seeds.len()].runs.push((seed, run));
    }
    Ok(outcomes)
}

fn take<T: Copy>(next: &AtomicUsize, jobs: &[T]) -> Option<(usize, T)> {
    let at = next.fetch_add(1, Ordering::Relaxed);
    Some((at, *jobs.get(at)?))
}
