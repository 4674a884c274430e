//! HAMi's promises on a real node, row by row as docs/modes.md lists them, and the example pods of
//! its repository. HAMI-2 is in `node`, HAMI-12 in tests/chart, HAMI-14 in `control_plane`; HAMI-3, 4, 5, 10 and 11 need no node.

use aliquot_e2e::scenario::{Scenario, scenario};

mod compute;
mod counted;
mod examples;
mod memory;
mod world;

pub(crate) use world::start;

pub(crate) fn scenarios() -> Vec<Scenario> {
    vec![
        scenario(
            "hami_13_limiter_logs_its_start_and_exit_when_asked_to",
            memory::startup_lines,
        ),
        scenario(
            "hami_6_high_ones_together_and_a_lone_low_one_run_unlimited",
            compute::priorities,
        ),
        scenario(
            "hami_9_pod_chooses_when_compute_is_limited_or_oom_kills",
            compute::policies,
        ),
        scenario(
            "hami_8_disablecorelimit_and_profiles_apply_per_node",
            compute::node_wide,
        ),
        scenario(
            "hami_examples_run_with_the_share_in_the_guide",
            examples::run,
        ),
        scenario(
            "hami_7_twice_the_memory_of_a_gpu_is_allocated_and_used",
            memory::scaled,
        ),
        scenario(
            "hami_1_each_gpu_counts_as_often_as_it_is_split",
            counted::split,
        ),
    ]
}
