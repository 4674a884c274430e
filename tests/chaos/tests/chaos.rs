//! Processes of two replicas are killed at every named place of the
//! scheduler while pods come and go.
//!
//! `make test` runs it with a thousand pods at a third of the places in a random order; `make chaos`
//! with five thousand pods and every victim at every place, in that order and in a fixed one.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use aliquot_chaos::number;
use aliquot_chaos::places::PLACES;
use aliquot_chaos::run::{Size, run};
use aliquot_e2e::stack::Kind;
use anyhow::{Context as _, Result, ensure};
use libtest_mimic::{Arguments, Failed, Trial};

/// Pods of each run of `make chaos`, a hundred a second.
const PODS: &str = "ALIQUOT_CHAOS_PODS";
/// Set to the seed of a failure to see its order again.
const SEED: &str = "ALIQUOT_CHAOS_SEED";
/// The order that every run of the suite has.
const FIXED: u64 = 20_261_121;
/// A string that only a build with fail-points contains.
const MARK: &[u8] = b"ALIQUOT_FAIL_POINT_FILE";

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let trials = vec![
        trial("shipped_scheduler_has_no_fail_points", shipped),
        trial("kills_a_process_at_every_fail_point", every_point),
        trial("kills_at_every_point_in_fixed_order", || chaos(FIXED, 1))
            .with_ignored_flag(std::env::var_os(PODS).is_none()),
        trial("kills_at_points_in_random_order", || {
            let seed = number(SEED)?;
            chaos(seed.unwrap_or_else(|| fastrand::u64(..)), 3)
        }),
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trial(name: &str, run: fn() -> Result<()>) -> Trial {
    Trial::test(name, move || {
        run().map_err(|error| Failed::from(format!("{error:#}")))
    })
}

fn chaos(seed: u64, one_in: usize) -> Result<()> {
    let long = number(PODS)?;
    let size = Size {
        pods: long.unwrap_or(1000),
        every: Duration::from_millis(if long.is_some() { 10 } else { 40 }),
        one_in: if long.is_some() { 1 } else { one_in },
        all_victims: long.is_some(),
    };
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(Box::pin(run(seed, size)))
}

fn shipped() -> Result<()> {
    let holds = |name: &str| -> Result<bool> {
        let program = std::env::current_exe()?;
        let mut folders = program.ancestors();
        let folder = folders.find(|folder| folder.join(name).is_file());
        let folder = folder.with_context(|| format!("no {name}: make build"))?;
        let bytes = std::fs::read(folder.join(name))?;
        Ok(bytes.windows(MARK.len()).any(|window| window == MARK))
    };
    ensure!(holds("aliquot-scheduler-chaos")?, "the mark is not there");
    ensure!(!holds(Kind::Scheduler.name())?, "it has fail-points");
    Ok(())
}

fn every_point() -> Result<()> {
    let scheduler = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scheduler/src");
    let mut folders = vec![PathBuf::from(scheduler)];
    let mut points = BTreeSet::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let source = std::fs::read_to_string(&path)?;
            let calls = source.split("fail_point::at(\"").skip(1);
            let names = calls.filter_map(|call| call.split_once('"'));
            points.extend(names.map(|(name, _)| name.to_owned()));
        }
    }
    let places: BTreeSet<String> = PLACES.iter().map(|place| place.name.to_owned()).collect();
    ensure!(points == places, "{points:?}, {places:?}");
    Ok(())
}
