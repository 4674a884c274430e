//! Gangs are bound whole or not at all, also when the leading replica is killed.
//!
//! `make test` runs a few rounds, one of them with a kill; `make gangs` five hundred with fifty.

use std::process::ExitCode;

use aliquot_chaos::gangs::{Size, Tally, run};
use aliquot_chaos::number;
use aliquot_e2e::figures::print_line;
use anyhow::{Result, ensure};
use libtest_mimic::{Arguments, Failed, Trial};

const ROUNDS: &str = "ALIQUOT_GANG_ROUNDS";
/// One round of so many has a kill; 0: none.
const KILL_EVERY: &str = "ALIQUOT_GANG_KILL_EVERY";
/// Draws the kills.
const SEED: &str = "ALIQUOT_GANG_SEED";

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let trial = Trial::test("binds_gangs_whole_or_not_at_all", || {
        whole_or_not_at_all().map_err(|error| Failed::from(format!("{error:#}")))
    });
    libtest_mimic::run(&arguments, vec![trial]).exit_code()
}

fn whole_or_not_at_all() -> Result<()> {
    let size = Size {
        rounds: number(ROUNDS)?.unwrap_or(10),
        kill_every: number(KILL_EVERY)?.unwrap_or(10),
        seed: number(SEED)?.unwrap_or(20_261_123),
    };
    let runtime = tokio::runtime::Runtime::new()?;
    let tally = runtime.block_on(Box::pin(run(size)))?;
    print_line(&report(size.rounds, tally.clone()));
    ensure!(tally.in_part == 0, "{} gangs bound in part", tally.in_part);
    let kills = size.rounds.checked_div(size.kill_every).unwrap_or(0);
    ensure!(
        kills == 0 || tally.kills > 0,
        "none of {kills} kills struck"
    );
    Ok(())
}

/// One line of JSON, as `make bench` prints them.
fn report(rounds: usize, mut tally: Tally) -> String {
    tally.times.sort();
    let at = |percent: usize| {
        let last = tally.times.len().saturating_sub(1);
        tally
            .times
            .get(last * percent / 100)
            .map_or(0.0, std::time::Duration::as_secs_f64)
    };
    format!(
        r#"{{"figure": "gangs", "rounds": {rounds}, "kills": {}, "in_part": {}, "p50_s": {:.3}, "max_s": {:.3}}}"#,
        tally.kills,
        tally.in_part,
        at(50),
        at(100)
    )
}
