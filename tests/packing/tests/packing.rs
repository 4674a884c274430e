//! How well the scheduler's decisions pack the public trace.

use aliquot_packing::cpu;
use aliquot_packing::figures::{above_fgd, ours};
use aliquot_packing::pins::{Mix, PERCENTAGES};
use aliquot_packing::report::Summary;
use aliquot_packing::runs::{Policy, simulate};
use aliquot_packing::{FGD, SEEDS};
use aliquot_style::figures::Report;

#[test]
fn packs_every_trace_as_promised() {
    let mut report = Report::new(|title| title == "Packing").expect("the specification");
    let figures = ours().expect("no pod is misplaced");
    for figure in figures {
        let line = report.line(figure).expect("JSON");
        assert!(line.contains("\"verdict\""), "no target: {line}");
    }
    report.end(false).expect("every target is met");
}

/// Which validates what it says of Aliquot.
#[test]
fn simulation_reproduces_published_figures_of_fgd() {
    let trace = aliquot_packing::trace("default").expect("the files of openb");
    let seeds: Vec<u64> = SEEDS.collect();
    let outcomes = simulate(&trace, &[Policy::Fgd], &seeds).expect("no pod is misplaced");
    let found = Summary::of(&outcomes[0]).unallocated;
    assert_eq!(found.len(), FGD.len());
    for (found, published) in found.iter().zip(FGD) {
        assert!(
            (found.mean - published).abs() <= 0.3,
            "{found:?}, published {published}"
        );
    }
}

#[test]
fn strands_no_more_than_fgd_on_any_mix_of_pinned_models() {
    for mix in PERCENTAGES.into_iter().flat_map(Mix::all) {
        let trace = mix.trace(2).expect("the files of openb");
        let above = above_fgd(&trace, &[52, 53]).expect("no pod is misplaced");
        assert!(above <= 0.05, "{mix:?}: {above:.3}");
    }
}

#[test]
fn strands_no_more_than_fgd_however_many_pods_ask_for_no_gpu() {
    for part in cpu::PARTS {
        // One draw of the pods differs from another by up to 0.2.
        let each = (1..=4).map(|draw| {
            let trace = cpu::mix(part, draw).expect("the files of openb");
            above_fgd(&trace, &[42, 43, 44]).expect("no pod is misplaced")
        });
        let above = each.sum::<f64>() / 4.0;
        assert!(above <= 0.05, "{part} of 1000: {above:.3}");
    }
}
