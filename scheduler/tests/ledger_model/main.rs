//! The ledger cache under random operations, equal to a reference model after each of them.
//!
//! Runs with a fixed seed and with a fresh one, which is printed; `ALIQUOT_SEED` replays one. The
//! API server is `world.rs`.

mod reference;
mod run;
mod shapes;
mod system;
mod world;

use std::io::Write;

use run::Run;

/// Steps with the fixed seed.
const STEPS: u64 = 200_000;
/// Steps with a fresh one; `make test-all` sets `ALIQUOT_STEPS` to a million.
const FRESH_STEPS: u64 = 50_000;

/// Seed and step, printed when the test fails.
struct Progress {
    seed: u64,
    step: u64,
}

impl Drop for Progress {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self { seed, step } = self;
            print(&format!(
                "failed at step {step}; replay with ALIQUOT_SEED={seed}"
            ));
        }
    }
}

/// Writes past the captured output of the test.
fn print(text: &str) {
    let _ = writeln!(std::io::stderr(), "ledger_model: {text}");
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{variable}={text}: expected a number")),
    )
}

/// Returns how many preemption plans there were.
async fn check(seed: u64, steps: u64) -> u64 {
    let mut progress = Progress { seed, step: 0 };
    let mut run = Run::new(seed);
    while progress.step < steps {
        progress.step += 1;
        run.step().await;
        if progress.step.is_multiple_of(steps / 10) {
            run.settle();
        }
    }
    run.planned
}

#[tokio::test(start_paused = true)]
async fn ledger_equals_model_with_fixed_seed() {
    let planned = check(42, STEPS).await;
    assert!(planned > 0, "no preemption plan was compared");
}

#[tokio::test(start_paused = true)]
async fn ledger_equals_model_with_fresh_seed() {
    let seed = number("ALIQUOT_SEED").unwrap_or_else(|| fastrand::u64(..));
    print(&format!("fresh seed {seed}"));
    check(seed, number("ALIQUOT_STEPS").unwrap_or(FRESH_STEPS)).await;
}
