//! `simulate` reproduces the published figures of six policies on openb's default trace, which validates
//! its figures for Aliquot. Skipped without the files in `OPENB_DIR`.

mod openb;

use aliquot_cli::report::Summary;
use aliquot_cli::simulate::{Policy, simulate};

/// Published mean of ten seeds, unallocated percent at 95, 100, 120 and 130 % of load.
const PUBLISHED: [(Policy, [f64; 4]); 6] = [
    (Policy::Random, [14.28, 13.70, 12.72, 12.53]),
    (Policy::Dotprod, [9.42, 9.38, 9.23, 9.15]),
    (Policy::Clustering, [8.39, 8.35, 8.20, 8.12]),
    (Policy::Packing, [8.26, 8.22, 8.08, 8.00]),
    (Policy::Bestfit, [7.18, 7.14, 7.00, 6.92]),
    (Policy::Fgd, [5.09, 4.77, 4.65, 4.61]),
];
/// How far a mean may be off.
const TOLERANCE: f64 = 0.3;

fn check(summary: &Summary, expected: [f64; 4]) {
    let found: Vec<f64> = summary.unallocated.iter().map(|f| f.mean).collect();
    let close = |(a, b): (&f64, &f64)| (a - b).abs() <= TOLERANCE;
    assert!(
        found.len() == 4 && found.iter().zip(&expected).all(close),
        "{}: {found:?}, published {expected:?}",
        summary.policy
    );
}

#[test]
fn reproduces_published_figures_of_six_policies() {
    let Some(trace) = openb::trace("default") else {
        return;
    };
    let policies = PUBLISHED.map(|(policy, _)| policy);
    let seeds: Vec<u64> = (42..=51).collect();
    let outcomes = simulate(&trace, &policies, &seeds, 130, &|_, _| ()).unwrap();
    for (outcome, (_, expected)) in outcomes.iter().zip(PUBLISHED) {
        assert_eq!(outcome.runs.len(), seeds.len());
        check(&Summary::of(outcome), expected);
    }
}
