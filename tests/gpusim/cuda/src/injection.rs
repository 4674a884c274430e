//! Errors and delays on demand, from the environment, each for one symbol and read once for each
//! process: `GPUSIM_FAULTS=cuLaunchKernel=719` makes its calls fail with that code,
//! `GPUSIM_SLOW=cuMemRetainAllocationHandle=300` makes them return that many milliseconds late; with
//! `GPUSIM_HELD=cuGraphLaunch=FILE` the first one waits, as for a full queue, while `FILE` exists, and
//! creates `FILE.held` first.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use aliquot_gpusim_model::clock;

use crate::wait::pause;

/// A symbol, and what is asked for it.
type Request<T> = OnceLock<Option<(String, T)>>;

static FAULT: Request<u32> = OnceLock::new();
static DELAY: Request<u64> = OnceLock::new();
static PAUSE: Request<PathBuf> = OnceLock::new();

/// What a variable of the environment asks for `symbol`.
#[inline]
fn asked<T: FromStr>(
    request: &'static Request<T>,
    variable: &str,
    symbol: &str,
) -> Option<&'static T> {
    let request = request.get_or_init(|| {
        let text = std::env::var(variable).ok()?;
        let (symbol, value) = text.split_once('=')?;
        Some((symbol.to_owned(), value.parse().ok()?))
    });
    let (_, value) = request.as_ref().filter(|(name, _)| name == symbol)?;
    Some(value)
}

/// The injected error of a call of `symbol`, if any.
#[inline]
pub(crate) fn of_call(symbol: &str) -> Option<u32> {
    asked(&FAULT, "GPUSIM_FAULTS", symbol).copied()
}

/// Waits as long as `GPUSIM_SLOW` asks for `symbol`.
#[inline]
pub(crate) fn delay(symbol: &str) {
    if let Some(milliseconds) = asked(&DELAY, "GPUSIM_SLOW", symbol) {
        let end = clock() + milliseconds * 1_000_000;
        while let Some(left) = end.checked_sub(clock()).filter(|left| *left > 0) {
            pause(left);
        }
    }
}

/// Blocks the first call of `symbol` while its file exists.
#[inline]
pub(crate) fn pause_first_call(symbol: &str) {
    if let Some(file) = asked(&PAUSE, "GPUSIM_HELD", symbol) {
        wait_for(file);
    }
}

#[cold]
fn wait_for(file: &Path) {
    static PAUSED: AtomicBool = AtomicBool::new(false);
    if PAUSED.swap(true, Relaxed) {
        return;
    }
    // A test that waits for it has a deadline of its own.
    let _ = std::fs::write(file.with_extension("held"), "");
    while file.exists() {
        pause(1_000_000);
    }
}
