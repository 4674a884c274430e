//! The figures that `make bench` prints: how much GPU capacity stays unallocated on the public trace openb
//! by our decisions, as published, and with a stock install.

use aliquot_style::figures::Figure;
use anyhow::{Context as _, Result};

use crate::pins::{Mix, PERCENTAGES};
use crate::report::{Figure as Unallocated, Summary};
use crate::runs::{Policy, simulate};
use crate::trace::Trace;
use crate::{FGD, OTHERS, SEEDS};

/// Draws the pins of the mixes.
const PINS_SEED: u64 = 1;
/// Of the runs on each mix.
const PINS_SEEDS: [u64; 4] = [42, 43, 44, 45];

/// Aliquot's on every trace.
pub fn ours() -> Result<Vec<Figure>> {
    let [fgd_early, fgd, ..] = FGD;
    let found = run(&crate::trace("default")?, Policy::Ours)?;
    let (early, full) = (at(&found, 95)?, at(&found, 100)?);
    let what = |detail: &str| format!("Aliquot, {detail}; baseline: FGD as published");
    let most = what("the worst of ten seeds");
    let at_95 = what("at 95 % of load");
    let mut figures = vec![
        figure("default", "ours_at_95", early.mean, fgd_early, &at_95),
        figure("default", "ours", full.mean, fgd, &what("all pods")),
        figure("default", "ours_most", full.most, fgd, &most),
    ];
    for (name, published) in OTHERS {
        let found = at(&run(&crate::trace(name)?, Policy::Ours)?, 100)?.mean;
        figures.push(figure(name, "ours", found, published, &what("all pods")));
    }
    Ok(figures)
}

/// FGD and GPUs by DRA's allocator on the default trace, and the worst of the mixes of pinned models.
pub fn others() -> Result<Vec<Figure>> {
    let default = crate::trace("default")?;
    let full = |policy| anyhow::Ok(at(&run(&default, policy)?, 100)?.mean);
    let mut figures = Vec::new();
    let what = "FGD in our simulation; baseline: as published";
    let [_, published, ..] = FGD;
    figures.push(figure(
        "default",
        "fgd",
        full(Policy::Fgd)?,
        published,
        what,
    ));
    let ours = full(Policy::Ours)?;
    for (policy, order) in [
        (Policy::DraFullestFirst, "the fullest first"),
        (Policy::DraFirstFit, "in a fixed order"),
    ] {
        let what = format!(
            "nodes by Aliquot's score, GPUs by DRA's allocator, {order}; baseline: Aliquot"
        );
        let found = full(policy)?;
        figures.push(figure("default", &policy.name(), found, ours, &what));
    }
    for percent in PERCENTAGES {
        figures.push(worst_with_pins(percent)?);
    }
    Ok(figures)
}

fn run(trace: &Trace, policy: Policy) -> Result<Summary> {
    let seeds: Vec<u64> = SEEDS.collect();
    let outcomes = simulate(trace, &[policy], &seeds)?;
    Ok(Summary::of(outcomes.first().context("one policy ran")?))
}

/// How much more than FGD, here, Aliquot leaves unallocated on a trace: negative if less.
pub fn above_fgd(trace: &Trace, seeds: &[u64]) -> Result<f64> {
    let outcomes = simulate(trace, &[Policy::Ours, Policy::Fgd], seeds)?;
    let found = |policy: usize| -> Result<f64> {
        let outcome = outcomes.get(policy).context("both policies ran")?;
        Ok(at(&Summary::of(outcome), 100)?.mean)
    };
    Ok(found(0)? - found(1)?)
}

/// The worst of the mixes with this percentage of pods pinned to models.
fn worst_with_pins(percent: usize) -> Result<Figure> {
    let mut worst = f64::NEG_INFINITY;
    for mix in Mix::all(percent) {
        worst = worst.max(above_fgd(&mix.trace(PINS_SEED)?, &PINS_SEEDS)?);
    }
    Ok(Figure {
        name: format!("unallocated_pins_{percent}_above_fgd"),
        value: worst,
        unit: "%",
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
        unit: "%",
        baseline,
        what: format!(
            "GPU unallocated on openb {trace}, ten seeds, 100 % of load unless it says otherwise: {what}"
        ),
    }
}
