//! HAMi's promises on a real node, row by row as docs/modes.md lists them, and the example pods of
//! its repository, where they need a node: HAMI-2 is in `node`, HAMI-12 in tests/chart, HAMI-14 in `control_plane`.

use aliquot_e2e::scenario::{Scenario, scenario};

mod compute;
mod examples;
mod world;

pub(crate) use world::start;

pub(crate) fn scenarios() -> Vec<Scenario> {
    vec![
        scenario(
            "hami_9_pod_chooses_when_compute_is_limited_or_oom_kills",
            compute::policies,
        ),
        scenario(
            "hami_examples_run_with_the_share_in_the_guide",
            examples::run,
        ),
    ]
}
