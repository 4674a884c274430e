//! Runs policies over a trace, for several seeds, on all processors.

use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, Result};
use clap::ValueEnum;

use crate::LOAD;
use crate::aliquot::{Aliquot, CpuOnly, GpuChoice, Manner, TypicalSource};
use crate::experiment::{self, Placer, Run};
use crate::fgd::{Fgd, Typical};
use crate::hami::Hami;
use crate::trace::Trace;
use crate::workload::Workload;

/// A policy to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Policy {
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
    /// Nodes by Aliquot's score; GPUs by DRA's allocator: the first that fit, in the order of a fixed list
    DraFirstFit,
    /// The same with a driver that lists the fullest GPU first
    DraFullestFirst,
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
        let aliquot = |manner| Box::new(Aliquot::new(trace, &workload.nodes, manner, seed));
        let ours = |cpu_only, typical| {
            aliquot(Manner {
                cpu_only,
                typical,
                gpus: GpuChoice::Ours,
            })
        };
        let dra = |gpus| {
            aliquot(Manner {
                cpu_only: CpuOnly::Ranked,
                typical: TypicalSource::Trace,
                gpus,
            })
        };
        match self {
            Self::Fgd => Box::new(Fgd::new(typical.clone())),
            Self::Ours => ours(CpuOnly::Ranked, TypicalSource::Trace),
            Self::OursLearning => ours(CpuOnly::Ranked, TypicalSource::Ledger),
            Self::OursCpuDefault => ours(CpuOnly::LeastAllocated, TypicalSource::Trace),
            Self::OursCpuEntry => ours(CpuOnly::LeastAllocatedAndRanked, TypicalSource::Trace),
            Self::DraFirstFit => dra(GpuChoice::FirstFit),
            Self::DraFullestFirst => dra(GpuChoice::FullestFirst),
            Self::Hami => Box::new(Hami),
        }
    }
}

/// One policy's runs, in the order of the seeds.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The policy's name.
    pub policy: String,
    /// One for each seed.
    pub runs: Vec<(u64, Run)>,
}

/// Runs every policy with every seed up to [`LOAD`], on all processors. Fails if a policy places a pod where it
/// does not fit.
pub fn simulate(trace: &Trace, policies: &[Policy], seeds: &[u64]) -> Result<Vec<Outcome>> {
    let typical = Typical::of(&trace.pods);
    let jobs: Vec<(Policy, u64)> = policies
        .iter()
        .flat_map(|policy| seeds.iter().map(|seed| (*policy, *seed)))
        .collect();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut results = Vec::new();
        while let Some((at, (policy, seed))) = take(&next, &jobs) {
            let workload = Workload::of(trace, seed, LOAD);
            let mut placer = policy.placer(trace, &workload, &typical, seed);
            let run = experiment::run(trace, workload, &mut *placer, LOAD);
            results.push((at, run));
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
        let run = run.with_context(|| format!("policy {policy}, seed {seed}"))?;
        outcomes[at / seeds.len()].runs.push((seed, run));
    }
    Ok(outcomes)
}

fn take<T: Copy>(next: &AtomicUsize, jobs: &[T]) -> Option<(usize, T)> {
    let at = next.fetch_add(1, Ordering::Relaxed);
    Some((at, *jobs.get(at)?))
}
