//! How well the scheduler's decisions pack the public trace. Skipped without the files in `OPENB_DIR`.

use aliquot_cli::simulate::report::Summary;
use aliquot_cli::simulate::runs::{Policy, simulate};
use aliquot_packing::{LOAD, OTHERS, Openb};

fn ours(trace: &str, seeds: &[u64]) -> Option<Summary> {
    let trace = Openb::find()?.trace(trace).expect("the files of openb");
    let outcomes = simulate(&trace, &[Policy::Ours], seeds, LOAD, &|_, _| ());
    Some(Summary::of(&outcomes.expect("no pod is misplaced")[0]))
}

#[test]
fn strands_less_than_fgd_on_default_trace() {
    // All ten by `make bench`.
    let Some(found) = ours("default", &[42, 43]) else {
        return;
    };
    let (early, full) = (found.unallocated_at(95), found.unallocated_at(100));
    assert!(
        full.is_some_and(|f| f.mean <= 4.75 && f.most <= 5.0),
        "{full:?}"
    );
    assert!(early.is_some_and(|f| f.mean <= 5.10), "{early:?}");
}

#[test]
fn strands_about_as_little_as_fgd_on_other_traces() {
    for (trace, published) in OTHERS {
        let Some(found) = ours(trace, &[42]) else {
            return;
        };
        let full = found.unallocated_at(100);
        assert!(
            full.is_some_and(|f| f.mean <= published + 0.3),
            "{trace}: {full:?}"
        );
    }
}
