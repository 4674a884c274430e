//! The simulation reproduces the published figures of six policies on openb's default trace, which validates
//! its figures for Aliquot.

use aliquot_packing::report::Summary;
use aliquot_packing::runs::simulate;
use aliquot_packing::{PUBLISHED, SEEDS};

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
    let trace = aliquot_packing::trace("default").expect("the files of openb");
    let policies = PUBLISHED.map(|(policy, _)| policy);
    let seeds: Vec<u64> = SEEDS.collect();
    let outcomes = simulate(&trace, &policies, &seeds).unwrap();
    for (outcome, (_, expected)) in outcomes.iter().zip(PUBLISHED) {
        assert_eq!(outcome.runs.len(), seeds.len());
        check(&Summary::of(outcome), expected);
    }
}
