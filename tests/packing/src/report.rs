//! The results of the runs, as figures and a table. The least and the most of the seeds stand
//! beside each mean.
//!
//! The figure of merit is the unallocated part of all GPUs, in percent, at a load that
//! has arrived: 100 minus the allocated part, mean over the seeds.

use std::fmt::Write as _;

use crate::experiment::Run;
use crate::runs::Outcome;

/// Loads whose columns are shown, in percent.
pub const LOADS: [usize; 4] = [95, 100, 120, 130];

/// A figure over all seeds, in percent of all GPUs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// Of the arrived load, in percent.
    pub load: usize,
    /// Over the seeds.
    pub mean: f64,
    /// The lowest seed.
    pub least: f64,
    /// The highest seed.
    pub most: f64,
}

/// One policy's figures.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Its name.
    pub policy: String,
    /// Mean number of pods that fitted nowhere.
    pub dropped: f64,
    /// At each of [`LOADS`] that was reached.
    pub unallocated: Vec<Figure>,
}

impl Summary {
    /// Over all seeds of a policy.
    pub fn of(outcome: &Outcome) -> Self {
        let runs: Vec<&Run> = outcome.runs.iter().map(|(_, run)| run).collect();
        let dropped = mean(runs.iter().map(|run| f64::from(run.dropped)));
        let figure = |load: usize| {
            let reached = runs
                .iter()
                .filter_map(|run| run.allocated.get(load).copied().flatten());
            let free: Vec<f64> = reached.map(|used| 100.0 - used).collect();
            Some(Figure {
                load,
                mean: round(mean(free.iter().copied())?),
                least: round(free.iter().copied().fold(f64::INFINITY, f64::min)),
                most: round(free.iter().copied().fold(f64::NEG_INFINITY, f64::max)),
            })
        };
        Self {
            policy: outcome.policy.clone(),
            dropped: dropped.unwrap_or_default(),
            unallocated: LOADS.into_iter().filter_map(figure).collect(),
        }
    }

    /// The figure at this load, if it was reached.
    pub fn unallocated_at(&self, load: usize) -> Option<Figure> {
        self.unallocated.iter().find(|f| f.load == load).copied()
    }
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (mut sum, mut count) = (0.0, 0.0);
    for value in values {
        sum += value;
        count += 1.0;
    }
    (count > 0.0).then(|| sum / count)
}

fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// A table for a terminal: one line a policy.
pub fn table(summaries: &[Summary]) -> String {
    let mut text = String::from("unallocated GPU, % of all, mean of the seeds (least to most)\n");
    let _ = write!(text, "{:<18}", "arrived load, %");
    for load in LOADS {
        let _ = write!(text, " {load:>20}");
    }
    text.push_str("   dropped\n");
    for summary in summaries {
        let _ = write!(text, "{:<18}", summary.policy);
        for load in LOADS {
            let cell = summary.unallocated_at(load).map_or_else(
                || "-".to_owned(),
                |f| format!("{:.2} ({:.2} to {:.2})", f.mean, f.least, f.most),
            );
            let _ = write!(text, " {cell:>20}");
        }
        let _ = writeln!(text, " {:>9.0}", summary.dropped);
    }
    text
}
