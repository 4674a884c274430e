//! Waiting for the simulated GPU in real time: asleep while much is left, awake for the last part.

use std::time::Duration;

/// Nanoseconds by which a sleep may be late.
const LATE: u64 = 80_000;
/// Longest sleep before the remaining time is computed again.
const LONGEST: u64 = 20_000_000;

/// Lets about `left` nanoseconds pass, rather less.
pub(crate) fn pause(left: u64) {
    if left > LATE {
        #[expect(
            clippy::disallowed_methods,
            reason = "this is the simulated GPU's own time, which the caller reads again"
        )]
        std::thread::sleep(Duration::from_nanos((left - LATE).min(LONGEST)));
    } else {
        std::thread::yield_now();
    }
}
