//! How much GPU capacity stays unallocated on the public trace openb: by our decisions, as
//! published, and with a stock install. Without the files of `OPENB_DIR` it prints a note and no
//! figure.

#![allow(clippy::print_stderr, reason = "reports what is missing")]

use std::path::PathBuf;

use aliquot_cli::report::{Figure as Unallocated, Summary};
use aliquot_cli::simulate::{Policy, simulate};
use aliquot_cli::trace::Trace;
use anyhow::{Context as _, Result};

use crate::client::Figure;

/// Seeds of the published experiment.
const SEEDS: std::ops::RangeInclusive<u64> = 42..=51;
const LOAD: u32 = 130;
/// Published means of the six policies on the default trace at 100 % of load.
const PUBLISHED: [(Policy, f64); 6] = [
    (Policy::Random, 13.70),
    (Policy::Dotprod, 9.38),
    (Policy::Clustering, 8.35),
    (Policy::Packing, 8.22),
    (Policy::Bestfit, 7.14),
    (Policy::Fgd, FGD),
];
const FGD: f64 = 4.77;
const FGD_AT_95: f64 = 5.09;
/// The other traces, and what FGD published for them.
const OTHERS: [(&str, f64); 4] = [
    ("cpu200", 5.18),
    ("gpushare40", 6.04),
    ("gpuspec10", 5.34),
    ("multigpu30", 3.64),
];

/// All figures, or none where the traces are absent.
pub(crate) fn measure() -> Result<Vec<Figure>> {
    let beside = || concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data/openb").into();
    let directory: PathBuf = std::env::var_os("OPENB_DIR").map_or_else(beside, PathBuf::from);
    if !directory.is_dir() {
        eprintln!(
            "no packing figures: directory {} of OPENB_DIR not found",
            directory.display()
        );
        return Ok(Vec::new());
    }
    let read = |name: &str| {
        let nodes = directory.join("openb_node_list_gpu_node.csv");
        Trace::read(
            &nodes,
            &directory.join(format!("openb_pod_list_{name}.csv")),
        )
    };
    let mut figures = Vec::new();
    let default = read("default")?;
    for (policy, published) in PUBLISHED {
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
        FGD_AT_95,
        &what("at 95 % of load"),
    ));
    figures.push(figure("default", "ours", full.mean, FGD, &what("all pods")));
    figures.push(figure("default", "ours_most", full.most, FGD, &most));
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
    for (name, published) in OTHERS {
        let found = at(&run(&read(name)?, Policy::Ours)?, 100)?.mean;
        figures.push(figure(name, "ours", found, published, &what("all pods")));
    }
    Ok(figures)
}

fn run(trace: &Trace, policy: Policy) -> Result<Summary> {
    let seeds: Vec<u64> = SEEDS.collect();
    let outcomes = simulate(trace, &[policy], &seeds, LOAD, &|_, _| ())?;
    Ok(Summary::of(outcomes.first().context("one policy ran")?))
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
