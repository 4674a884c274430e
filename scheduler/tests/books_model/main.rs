//! The running books under random operations, equal to a reference model after
//! every one of them.
//!
//! Fed by: a fixed seed and a fresh one, which is printed; `ALIQUOT_SEED`
//! replays one. Must not: call an API server; `world.rs` is it.

mod reference;
mod run;
mod shapes;
mod system;
mod world;

use std::io::Write;

use run::Run;

/// Of each test.
const STEPS: u64 = 1_000_000;

/// What is being tried, said when it fails.
struct Place {
    seed: u64,
    step: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self { seed, step } = self;
            say(&format!(
                "failed at step {step}; replay with ALIQUOT_SEED={seed}"
            ));
        }
    }
}

/// Past the test's captured output.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "books_model: {text}");
}

async fn check(seed: u64) {
    let mut place = Place { seed, step: 0 };
    let mut run = Run::new(seed);
    while place.step < STEPS {
        place.step += 1;
        run.step().await;
        if place.step.is_multiple_of(STEPS / 10) {
            run.settle();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_running_books_equal_the_model_with_a_fixed_seed() {
    check(42).await;
}

#[tokio::test(start_paused = true)]
async fn the_running_books_equal_the_model_with_a_fresh_seed() {
    let given = std::env::var("ALIQUOT_SEED").ok();
    let seed = given.map_or_else(
        || fastrand::u64(..),
        |text| text.parse().expect("ALIQUOT_SEED: a number"),
    );
    say(&format!("fresh seed {seed}"));
    check(seed).await;
}
