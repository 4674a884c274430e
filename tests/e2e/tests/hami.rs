//! HAMi's promises on a real node, row by row as docs/hami.md lists them, and the example pods of
//! its repository. HAMI-2 is in `node`, HAMI-12 in tests/chart.

use std::process::ExitCode;

use aliquot_e2e::scenario::{self, scenario};

#[path = "hami/asked.rs"]
mod asked;
#[path = "hami/compute.rs"]
mod compute;
#[path = "hami/counted.rs"]
mod counted;
#[path = "hami/examples.rs"]
mod examples;
#[path = "hami/memory.rs"]
mod memory;
#[path = "hami/names.rs"]
mod names;
#[path = "hami/placed.rs"]
mod placed;
#[path = "hami/world.rs"]
mod world;

fn main() -> ExitCode {
    scenario::main(
        world::start,
        vec![
            scenario(
                "hami_3_fifty_percent_is_half_of_the_card_that_was_chosen",
                asked::half,
            ),
            scenario(
                "hami_4_who_asks_for_memory_or_compute_only_gets_the_default_number_of_gpus",
                asked::count,
            ),
            scenario(
                "hami_5_what_is_not_asked_for_is_the_default_memory_and_compute",
                asked::defaults,
            ),
            scenario(
                "hami_10_memory_and_compute_go_in_steps_of_one_percent",
                asked::steps,
            ),
            scenario(
                "hami_14_pods_land_by_policy_and_several_cards_give_the_same_slice",
                placed::by_policy,
            ),
            scenario(
                "hami_13_the_library_says_when_it_starts_and_exits_where_it_is_asked_to",
                memory::said,
            ),
            scenario(
                "hami_6_high_ones_among_themselves_and_a_lone_low_one_are_not_limited",
                compute::priorities,
            ),
            scenario(
                "hami_9_a_pod_says_when_its_compute_is_limited_and_whether_it_is_ended",
                compute::policies,
            ),
            scenario(
                "hami_8_disablecorelimit_frees_a_node_and_cards_are_cut_by_profiles_only",
                compute::node_wide,
            ),
            scenario(
                "hami_examples_run_with_the_share_that_the_guide_says",
                examples::run,
            ),
            scenario(
                "hami_7_twice_a_cards_memory_is_booked_and_used",
                memory::scaled,
            ),
            scenario(
                "hami_1_each_gpu_counts_as_often_as_it_is_split",
                counted::split,
            ),
            scenario(
                "hami_11_all_five_resources_have_other_names_at_once",
                names::renamed,
            ),
        ],
    )
}
