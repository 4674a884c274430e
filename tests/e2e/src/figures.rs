//! Measured figures, printed between the lines of the scenarios.
//!
//! Fed by: scenarios. Must not: judge a figure.

use std::io::Write as _;
use std::time::Duration;

/// Prints one figure to standard error.
pub fn report(what: &str, took: Duration) {
    say(&format!("{what}: {:.2} s", took.as_secs_f64()));
}

/// Prints a line of figures to standard error.
pub fn say(line: &str) {
    let line = format!("    {line}\n");
    let _unheard = std::io::stderr().write_all(line.as_bytes());
}
