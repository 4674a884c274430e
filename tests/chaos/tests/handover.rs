//! The leader of two replicas is killed in the middle of a preemption,
//! and there is no second set of victims.

use std::process::ExitCode;

use aliquot_chaos::handover::run;
use libtest_mimic::{Arguments, Failed, Trial};

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let trials = vec![
        trial("other_replica_carries_out_an_unstarted_plan", 0),
        trial("other_replica_evicts_the_rest_of_a_plan_and_no_others", 1),
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// The leader falls after this many evictions of three.
fn trial(name: &str, evictions: usize) -> Trial {
    Trial::test(name, move || {
        let outcome = tokio::runtime::Runtime::new()
            .map_err(anyhow::Error::from)
            .and_then(|runtime| runtime.block_on(Box::pin(run(evictions))));
        outcome.map_err(|error| Failed::from(format!("{error:#}")))
    })
}
