//! How well the scheduler's decisions pack the public trace. Skipped without the files in `OPENB_DIR`.

use aliquot_cli::simulate::report::Summary;
use aliquot_cli::simulate::runs::{Policy, simulate};
use aliquot_packing::figures::above_fgd;
use aliquot_packing::pins::{Mix, PERCENTAGES};
use aliquot_packing::{LOAD, OTHERS, Openb, SEEDS};

fn ours(trace: &str) -> Option<Summary> {
    let trace = Openb::find()?.trace(trace).expect("the files of openb");
    let seeds: Vec<u64> = SEEDS.collect();
    let outcomes = simulate(&trace, &[Policy::Ours], &seeds, LOAD, &|_, _| ());
    Some(Summary::of(&outcomes.expect("no pod is misplaced")[0]))
}

#[test]
fn strands_less_than_fgd_on_default_trace() {
    let Some(found) = ours("default") else {
        return;
    };
    let (early, full) = (found.unallocated_at(95), found.unallocated_at(100));
    assert!(
        full.is_some_and(|f| f.mean <= 4.65 && f.most <= 5.0),
        "{full:?}"
    );
    assert!(early.is_some_and(|f| f.mean <= 5.10), "{early:?}");
}

#[test]
fn strands_about_as_little_as_fgd_on_other_traces() {
    for (trace, published) in OTHERS {
        let Some(found) = ours(trace) else {
            return;
        };
        let full = found.unallocated_at(100);
        assert!(
            full.is_some_and(|f| f.mean <= published + 0.05),
            "{trace}: {full:?}"
        );
    }
}

#[test]
fn strands_no_more_than_fgd_on_any_mix_of_pinned_models() {
    let Some(openb) = Openb::find() else {
        return;
    };
    for mix in PERCENTAGES.into_iter().flat_map(Mix::all) {
        let trace = mix.trace(&openb, 2).expect("the files of openb");
        let above = above_fgd(&trace, &[52, 53]).expect("no pod is misplaced");
        assert!(above <= 0.05, "{mix:?}: {above:.3}");
    }
}
