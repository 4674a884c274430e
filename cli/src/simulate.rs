//! The command `simulate`: policies over a trace, for several seeds.
//!
//! Fed by: flags.
//! Must not: print; `main` does, with what [`simulate`] returns.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};

use aliquot_core::{CardPolicy, Policy as NodePolicy};
use aliquot_k8s::flags::RequestFlags;
use clap::{Args, ValueEnum};
use thiserror::Error;

use crate::experiment::{self, Misplaced, Run};
use crate::hami::Hami;
use crate::live::Access;
use crate::ours::{CpuOnly, Knows, Ours};
use crate::published::{Peer, Published};
use crate::rig::Placer;
use crate::trace::{Trace, TraceError};
use crate::typical::Typical;
use crate::workload::Workload;

/// Which policy is driven.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Policy {
    /// Published: any node, any card
    Random,
    /// Published: alignment of what is left with what is asked for
    Dotprod,
    /// Published: nodes that hold the same kind of request
    Clustering,
    /// Published: used cards before free cards before free nodes
    Packing,
    /// Published: least left over
    Bestfit,
    /// Published: fragmentation gradient descent
    Fgd,
    /// Aliquot: its own filter, prioritize and ledger, for all pods
    Ours,
    /// Aliquot that learns the typical pods from those it placed
    OursLearning,
    /// Aliquot, while pods without GPU go where kube-scheduler's `LeastAllocated` says
    OursCpuDefault,
    /// The same with our entry for pods without GPU beside `LeastAllocated`
    OursCpuEntry,
    /// A model of stock HAMi: node binpack, card spread; pods without GPU by kube-scheduler's default
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
        let published = |policy| Box::new(Peer::new(policy, typical.clone(), seed));
        let ours = |cpu_only, knows| {
            let manner = (cpu_only, knows);
            Box::new(Ours::new(trace, &workload.nodes, manner, seed))
        };
        match self {
            Self::Random => published(Published::Random),
            Self::Dotprod => published(Published::DotProd),
            Self::Clustering => published(Published::Clustering),
            Self::Packing => published(Published::Packing),
            Self::Bestfit => published(Published::BestFit),
            Self::Fgd => published(Published::Fgd),
            Self::Ours => ours(CpuOnly::Ranked, Knows::Trace),
            Self::OursLearning => ours(CpuOnly::Ranked, Knows::Books),
            Self::OursCpuDefault => ours(CpuOnly::LeastAllocated, Knows::Trace),
            Self::OursCpuEntry => ours(CpuOnly::LeastAllocatedAndRanked, Knows::Trace),
            Self::Hami => Box::new(Hami),
        }
    }
}

/// `FIRST..LAST`, both included, or one number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seeds(pub Vec<u64>);

/// Seeds that cannot be meant.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{value:?}; accepted: a number such as 42, or a range such as 42..51 of at most 1000")]
pub struct UnknownSeeds {
    /// As it came.
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
    /// Pods of the trace, a CSV in the form of openb
    #[arg(long, value_name = "FILE", required_unless_present = "from_cluster")]
    pub pods: Option<PathBuf>,
    /// Nodes of the trace, a CSV in the form of openb
    #[arg(long, value_name = "FILE", required_unless_present = "from_cluster")]
    pub nodes: Option<PathBuf>,
    /// Seeds of the order of pods and nodes, such as 42..51
    #[arg(long, default_value = "42..51")]
    pub seeds: Seeds,
    /// Policies, with commas between them
    #[arg(long, value_delimiter = ',', required_unless_present = "from_cluster")]
    pub policy: Vec<Policy>,
    /// Load to go to, in percent of all GPUs
    #[arg(long, default_value_t = 130, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub load: u32,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
    /// Also draw allocation and fragmentation against load, as SVG
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// Instead of a trace: would one pod fit a living cluster as it is now, where,
    /// and if not, what would have to change
    #[arg(long, requires = "pod", conflicts_with_all = ["pods", "nodes", "policy", "plot"])]
    pub from_cluster: bool,
    /// The pod, a manifest in YAML or JSON
    #[arg(long, value_name = "FILE", requires = "from_cluster")]
    pub pod: Option<PathBuf>,
    /// Node policy of the scheduler there
    #[arg(long, default_value = "fragmentation")]
    pub node_policy: NodePolicy,
    /// GPU policy of the scheduler there
    #[arg(long, default_value = "fragmentation")]
    pub gpu_policy: CardPolicy,
    /// Most nodes in the table
    #[arg(long, default_value_t = 20)]
    pub most: usize,
    /// How to reach it
    #[command(flatten)]
    pub access: Access,
    /// Names and defaults of the scheduler there
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
    /// A policy broke the books.
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

/// Runs every policy with every seed, on all processors. `progress` is told how
/// many of how many runs are done.
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
