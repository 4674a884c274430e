//! The example pods of HAMi's repository on a real node.

use aliquot_e2e::scenario::{Scenario, scenario};

mod examples;
mod world;

pub(crate) use world::start;

pub(crate) fn scenarios() -> Vec<Scenario> {
    vec![scenario(
        "hami_examples_run_with_the_share_in_the_guide",
        examples::run,
    )]
}
