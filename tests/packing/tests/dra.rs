//! docs/concepts/dra.md shows what `simulate` measures.

use aliquot_cli::simulate::report::Summary;
use aliquot_cli::simulate::runs::{Policy, simulate};
use aliquot_packing::{LOAD, OTHERS, SEEDS};

const PAGE: &str = include_str!("../../../docs/concepts/dra.md");
/// The columns after the trace's name.
const POLICIES: [Policy; 3] = [Policy::Ours, Policy::DraFullestFirst, Policy::DraFirstFit];

/// The figures in the page's row of a trace.
fn documented(trace: &str) -> Vec<f64> {
    let begin = format!("| {trace} |");
    let row = PAGE.lines().find_map(|line| line.strip_prefix(&begin));
    let row = row.unwrap_or_else(|| panic!("the page has no row of {trace}"));
    let cells = row.split('|').map(str::trim);
    let cells = cells.filter(|cell| !cell.is_empty()).take(POLICIES.len());
    cells.map(|cell| cell.parse().expect("a number")).collect()
}

#[test]
fn page_about_dra_has_the_figures_of_every_trace() {
    let seeds: Vec<u64> = SEEDS.collect();
    for trace in OTHERS
        .map(|(trace, _)| trace)
        .into_iter()
        .chain(["default"])
    {
        let read = aliquot_packing::trace(trace).expect("the files of openb");
        let outcomes = simulate(&read, &POLICIES, &seeds, LOAD, &|_, _| ());
        let outcomes = outcomes.expect("no pod is misplaced");
        let full = outcomes.iter().map(|outcome| {
            let figure = Summary::of(outcome).unallocated_at(100);
            figure.expect("the load was reached").mean
        });
        let full: Vec<f64> = full.collect();
        let documented = documented(trace);
        let close = |(a, b): (&f64, &f64)| (a - b).abs() < 0.006;
        assert!(
            documented.len() == full.len() && documented.iter().zip(&full).all(close),
            "{trace}: the page has {documented:?}, simulate {full:?}"
        );
    }
}
