//! Measured figures, printed between the lines of the scenarios.

use std::io::Write as _;
use std::time::Duration;

/// Prints one figure to standard error.
pub fn report(what: &str, took: Duration) {
    print_line(&format!("{what}: {:.2} s", took.as_secs_f64()));
}

/// Prints a line of figures to standard error.
pub fn print_line(line: &str) {
    let line = format!("    {line}\n");
    let _unheard = std::io::stderr().write_all(line.as_bytes());
}
