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
/// Loads at which the fragmentation is shown.
const FRAGMENTATION: [usize; 3] = [50, 80, 90];

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
    /// Mean number of pods offered.
    pub offered: f64,
    /// Mean number of pods that fitted nowhere.
    pub dropped: f64,
    /// At each of [`LOADS`] that was reached.
    pub unallocated: Vec<Figure>,
    /// At 50, 80 and 90 % of load.
    pub fragmentation: Vec<Figure>,
    /// Mean allocated percent at each whole percent of load.
    pub allocated_curve: Vec<Option<f64>>,
    /// Mean fragmentation, in percent of all GPUs, at the same loads.
    pub fragmentation_curve: Vec<Option<f64>>,
}

impl Summary {
    /// Over all seeds of a policy.
    pub fn of(outcome: &Outcome) -> Self {
        let runs = &outcome.runs;
        let free: Vec<Vec<Option<f64>>> = runs
            .iter()
            .map(|(_, run)| run.allocated.iter().map(|v| v.map(|v| 100.0 - v)).collect())
            .collect();
        let free: Vec<&[Option<f64>]> = free.iter().map(Vec::as_slice).collect();
        let column = |of: fn(&Run) -> &Vec<Option<f64>>| -> Vec<&[Option<f64>]> {
            runs.iter().map(|(_, run)| of(run).as_slice()).collect()
        };
        let (used, lost) = (
            column(|run| &run.allocated),
            column(|run| &run.fragmentation),
        );
        let count = |of: fn(&Run) -> u32| mean(runs.iter().map(|(_, run)| f64::from(of(run))));
        Self {
            policy: outcome.policy.clone(),
            offered: count(|run| run.offered).unwrap_or_default(),
            dropped: count(|run| run.dropped).unwrap_or_default(),
            unallocated: figures(&free, &LOADS),
            fragmentation: figures(&lost, &FRAGMENTATION),
            allocated_curve: curve(&used),
            fragmentation_curve: curve(&lost),
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

fn at<'a>(runs: &'a [&[Option<f64>]], load: usize) -> impl Iterator<Item = f64> + 'a {
    runs.iter()
        .filter_map(move |run| run.get(load).copied().flatten())
}

fn figures(runs: &[&[Option<f64>]], loads: &[usize]) -> Vec<Figure> {
    let figure = |load: usize| {
        Some(Figure {
            load,
            mean: round(mean(at(runs, load))?),
            least: round(at(runs, load).fold(f64::INFINITY, f64::min)),
            most: round(at(runs, load).fold(f64::NEG_INFINITY, f64::max)),
        })
    };
    loads.iter().filter_map(|load| figure(*load)).collect()
}

fn curve(runs: &[&[Option<f64>]]) -> Vec<Option<f64>> {
    let columns = runs.iter().map(|run| run.len()).max().unwrap_or_default();
    (0..columns)
        .map(|load| mean(at(runs, load)).map(round))
        .collect()
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
    text.push_str("\nfragmentation, % of all GPUs, mean of the seeds\n");
    let _ = write!(text, "{:<18}", "arrived load, %");
    for load in FRAGMENTATION {
        let _ = write!(text, " {load:>8}");
    }
    text.push('\n');
    for summary in summaries {
        let _ = write!(text, "{:<18}", summary.policy);
        for figure in &summary.fragmentation {
            let _ = write!(text, " {:>8.2}", figure.mean);
        }
        text.push('\n');
    }
    text
}
