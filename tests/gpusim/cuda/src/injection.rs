//! Errors and delays on demand, from the environment, read once for each process:
//! `GPUSIM_FAULTS=cuMemAlloc_v2:3=2,cuLaunchKernel:*=719` makes the third call of the first symbol
//! and every call of the second fail with those codes; `GPUSIM_SLOW=cuMemRetainAllocationHandle=300`
//! makes calls return that many milliseconds late; with `GPUSIM_HELD=cuGraphLaunch=FILE` the first
//! call waits, as for a full queue, while `FILE` exists, and creates `FILE.held` first.

use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use aliquot_gpusim_model::clock;

use crate::wait::pause;

struct InjectedError {
    symbol: String,
    /// Which call from now, counted from 1; 0: each.
    number: u64,
    code: u32,
    calls: AtomicU64,
}

static ERRORS: OnceLock<Vec<InjectedError>> = OnceLock::new();
static SLOW: OnceLock<Vec<(String, u64)>> = OnceLock::new();
static PAUSED: OnceLock<Option<(String, String)>> = OnceLock::new();

/// The injected error of this call of `symbol`, if any.
#[inline]
pub(crate) fn of_call(symbol: &str) -> Option<u32> {
    let errors = ERRORS.get_or_init(|| {
        let text = std::env::var("GPUSIM_FAULTS").unwrap_or_default();
        text.split(',').filter_map(parse).collect()
    });
    if errors.is_empty() {
        return None;
    }
    let mut hits = errors.iter().filter(|error| error.symbol == symbol);
    hits.find_map(|error| {
        let call = error.calls.fetch_add(1, Relaxed) + 1;
        (error.number == 0 || error.number == call).then_some(error.code)
    })
}

/// Waits as long as `GPUSIM_SLOW` asks for `symbol`.
#[inline]
pub(crate) fn delay(symbol: &str) {
    let slow = SLOW.get_or_init(|| {
        let text = std::env::var("GPUSIM_SLOW").unwrap_or_default();
        let rows = text.split(',').filter_map(|row| row.trim().split_once('='));
        let rows = rows.filter_map(|(name, time)| Some((name.to_owned(), time.parse().ok()?)));
        rows.collect()
    });
    if let Some((_, milliseconds)) = slow.iter().find(|(name, _)| name == symbol) {
        let end = clock() + milliseconds * 1_000_000;
        while let Some(left) = end.checked_sub(clock()).filter(|left| *left > 0) {
            pause(left);
        }
    }
}

/// Blocks the first call of `symbol` while its file exists.
#[inline]
pub(crate) fn pause_first_call(symbol: &str) {
    let paused = PAUSED.get_or_init(|| {
        let text = std::env::var("GPUSIM_HELD").ok()?;
        let (symbol, file) = text.split_once('=')?;
        Some((symbol.to_owned(), file.to_owned()))
    });
    if let Some((_, file)) = paused.as_ref().filter(|(name, _)| name == symbol) {
        wait_for(Path::new(file));
    }
}

#[cold]
fn wait_for(file: &Path) {
    static FIRST: AtomicU64 = AtomicU64::new(0);
    if FIRST.fetch_add(1, Relaxed) > 0 {
        return;
    }
    // A test that waits for it has a deadline of its own.
    let _ = std::fs::write(file.with_extension("held"), "");
    while file.exists() {
        pause(1_000_000);
    }
}

fn parse(text: &str) -> Option<InjectedError> {
    let (call, code) = text.trim().split_once('=')?;
    let (symbol, number) = call.split_once(':').unwrap_or((call, "*"));
    Some(InjectedError {
        symbol: symbol.to_owned(),
        number: if number == "*" {
            0
        } else {
            number.parse().ok()?
        },
        code: code.parse().ok()?,
        calls: AtomicU64::new(0),
    })
}
