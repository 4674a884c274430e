//! Faults on demand: `GPUSIM_FAULTS=cuMemAlloc_v2:3=2,cuLaunchKernel:*=719` lets the third call
//! of the first symbol and every call of the second fail with those codes; `GPUSIM_MISSING` names
//! functions that this driver shall not know; `GPUSIM_SLOW=cuMemRetainAllocationHandle=300` lets
//! calls answer so many milliseconds after they did what they do; with `GPUSIM_HELD=cuGraphLaunch=FILE`
//! the first call waits, as for a queue that is full, while there is a file of that name; it makes
//! `FILE.held` first. Fed by the environment, once for each process.

use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use aliquot_gpusim_model::clock;

use crate::wait::pause;

struct Fault {
    symbol: String,
    /// Which call from now, counted from 1; 0: each.
    number: u64,
    code: u32,
    calls: AtomicU64,
}

static FAULTS: OnceLock<Vec<Fault>> = OnceLock::new();
static SLOW: OnceLock<Vec<(String, u64)>> = OnceLock::new();
static HELD: OnceLock<Option<(String, String)>> = OnceLock::new();
static MISSING: OnceLock<Vec<String>> = OnceLock::new();

/// The code with which this call of `symbol` shall fail.
#[inline]
pub(crate) fn of_call(symbol: &str) -> Option<u32> {
    let faults = FAULTS.get_or_init(|| {
        let text = std::env::var("GPUSIM_FAULTS").unwrap_or_default();
        text.split(',').filter_map(parse).collect()
    });
    if faults.is_empty() {
        return None;
    }
    let mut hits = faults.iter().filter(|fault| fault.symbol == symbol);
    hits.find_map(|fault| {
        let call = fault.calls.fetch_add(1, Relaxed) + 1;
        (fault.number == 0 || fault.number == call).then_some(fault.code)
    })
}

/// Lets the time pass that calls of `symbol` take longer.
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

/// Lets the first call of `symbol` wait until it is let go.
#[inline]
pub(crate) fn hold(symbol: &str) {
    let held = HELD.get_or_init(|| {
        let text = std::env::var("GPUSIM_HELD").ok()?;
        let (symbol, file) = text.split_once('=')?;
        Some((symbol.to_owned(), file.to_owned()))
    });
    if let Some((_, file)) = held.as_ref().filter(|(name, _)| name == symbol) {
        wait_for(Path::new(file));
    }
}

#[cold]
fn wait_for(file: &Path) {
    static FIRST: AtomicU64 = AtomicU64::new(0);
    if FIRST.fetch_add(1, Relaxed) > 0 {
        return;
    }
    // A test that waits for it ends by its own deadline.
    let _ = std::fs::write(file.with_extension("held"), "");
    while file.exists() {
        pause(1_000_000);
    }
}

fn parse(text: &str) -> Option<Fault> {
    let (call, code) = text.trim().split_once('=')?;
    let (symbol, number) = call.split_once(':').unwrap_or((call, "*"));
    Some(Fault {
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

/// This driver shall not know the function, by its name without suffix.
pub(crate) fn is_missing(name: &str) -> bool {
    let missing = MISSING.get_or_init(|| {
        let text = std::env::var("GPUSIM_MISSING").unwrap_or_default();
        text.split(',').map(|name| name.trim().to_owned()).collect()
    });
    missing.iter().any(|known| known == name)
}
