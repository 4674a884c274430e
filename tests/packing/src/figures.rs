//! The figures that `make bench` prints: how much GPU capacity stays unallocated on the public trace openb
//! by our decisions, as published, and with a stock install.

use aliquot_cli::simulate::report::{Figure as Unallocated, Summary};
use aliquot_cli::simulate::runs::{Policy, simulate};
use aliquot_cli::simulate::trace::Trace;
use anyhow::{Context as _, Result};

use crate::pins::{Mix, PERCENTAGES};
use crate::{FGD, LOAD, OTHERS, Openb, PUBLISHED, SEEDS};

/// Draws the pins of the mixes.
const PINS_SEED: u64 = 1;
/// Of the runs on each mix.
const PINS_SEEDS: [u64; 4] = [42, 43, 44, 45];

/// A figure in percent of all GPUs.
#[derive(Clone, Debug)]
pub struct Figure {
    /// Its name in docs/SPECIFICATION.md.
    pub name: String,
    /// As measured.
    pub value: f64,
    /// What it is compared with.
    pub baseline: f64,
    /// What was measured, and what the baseline is.
    pub what: String,
}

/// All figures, or none where the traces are absent.
pub fn measure() -> Result<Vec<Figure>> {
    let Some(openb) = Openb::find() else {
        return Ok(Vec::new());
    };
    let [fgd_early, fgd, ..] = FGD;
    let mut figures = Vec::new();
    let default = openb.trace("default")?;
    for (policy, [_, published, ..]) in PUBLISHED {
        let what = format!(
            "{} in our simulation; baseline: as published",
            policy.name()
        );
        let found = at(&run(&default, policy)?, 100)?.mean;
        figures.push(figure("default", &policy.name(), found, published, &what));
    }
    let ours = run(&default, Policy::Ours)?;
    let what = |detail: &str| format!("Aliquot, {detail}; baseline: FGD as published");
    let (early, full) = (at(&ours, 95)?, at(&ours, 100)?);
    let most = what("the worst of ten seeds");
    figures.push(figure(
        "default",
        "ours_at_95",
        early.mean,
        fgd_early,
        &what("at 95 % of load"),
    ));
    figures.push(figure("default", "ours", full.mean, fgd, &what("all pods")));
    figures.push(figure("default", "ours_most", full.most, fgd, &most));
    for (policy, order) in [
        (Policy::DraFullestFirst, "the fullest first"),
        (Policy::DraFirstFit, "in a fixed order"),
    ] {
        let found = at(&run(&default, policy)?, 100)?.mean;
        let what = format!(
            "nodes by Aliquot's score, GPUs by DRA's allocator, {order}; baseline: Aliquot"
        );
        figures.push(figure("default", &policy.name(), found, full.mean, &what));
    }
    let stock = at(&run(&default, Policy::Hami)?, 100)?.mean;
    for (policy, detail) in [
        (
            Policy::OursLearning,
            "typical pods learned from the pods placed so far",
        ),
        (
            Policy::OursCpuEntry,
            "pods without GPU by LeastAllocated and our entry for them",
        ),
        (
            Policy::OursCpuDefault,
            "pods without GPU by LeastAllocated alone",
        ),
    ] {
        let found = at(&run(&default, policy)?, 100)?.mean;
        let what = format!("Aliquot, {detail}; baseline: a model of stock HAMi");
        figures.push(figure("default", &policy.name(), found, stock, &what));
    }
    for percent in PERCENTAGES {
        figures.push(worst_with_pins(&openb, percent)?);
    }
    for (name, published) in OTHERS {
        let found = at(&run(&openb.trace(name)?, Policy::Ours)?, 100)?.mean;
        figures.push(figure(name, "ours", found, published, &what("all pods")));
    }
    Ok(figures)
}

fn run(trace: &Trace, policy: Policy) -> Result<Summary> {
    let seeds: Vec<u64> = SEEDS.collect();
    let outcomes = simulate(trace, &[policy], &seeds, LOAD, &|_, _| ())?;
    Ok(Summary::of(outcomes.first().context("one policy ran")?))
}

/// How much more than FGD, here, Aliquot leaves unallocated on a trace: negative if less.
pub fn above_fgd(trace: &Trace, seeds: &[u64]) -> Result<f64> {
    let outcomes = simulate(trace, &[Policy::Ours, Policy::Fgd], seeds, LOAD, &|_, _| ())?;
    let found = |policy: usize| -> Result<f64> {
        let outcome = outcomes.get(policy).context("both policies ran")?;
        Ok(at(&Summary::of(outcome), 100)?.mean)
    };
    Ok(found(0)? - found(1)?)
}

/// The worst of the mixes with this percentage of pods pinned to models.
fn worst_with_pins(openb: &Openb, percent: usize) -> Result<Figure> {
    let mut worst = f64::NEG_INFINITY;
    for mix in Mix::all(percent) {
        worst = worst.max(above_fgd(&mix.trace(openb, PINS_SEED)?, &PINS_SEEDS)?);
    }
    Ok(Figure {
        name: format!("unallocated_pins_{percent}_above_fgd"),
        value: worst,
        baseline: 0.0,
        what: format!(
            "GPU unallocated with {percent} % of the GPU pods pinned to models, 100 % of load, worst of the mixes: Aliquot minus FGD; baseline: FGD"
        ),
    })
}

fn at(summary: &Summary, load: usize) -> Result<Unallocated> {
    summary.unallocated_at(load).context("the load was reached")
}

fn figure(trace: &str, name: &str, value: f64, baseline: f64, what: &str) -> Figure {
    Figure {
        name: format!("unallocated_{trace}_{}", name.replace('-', "_")),
        value,
        baseline,
        what: format!(
            "GPU unallocated on openb {trace}, ten seeds, 100 % of load unless it says otherwise: {what}"
        ),
    }
}
