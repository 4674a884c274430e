//! Measured figures, printed between the lines of the scenarios.
//!
//! Fed by: scenarios. Must not: judge a figure.

use std::io::Write as _;
use std::time::Duration;

/// Prints one figure to standard error.
pub fn report(what: &str, took: Duration) {
    let line = format!("    {what}: {:.2} s\n", took.as_secs_f64());
    let _unheard = std::io::stderr().write_all(line.as_bytes());
}
