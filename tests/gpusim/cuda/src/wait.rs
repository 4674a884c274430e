//! Waiting for the simulated card in real time: asleep while much is left, awake for the last part.

use std::time::Duration;

/// Nanoseconds by which a sleep may be late.
const LATE: u64 = 80_000;
/// Longest sleep, after which is looked whether less is left than it seemed.
const LONGEST: u64 = 20_000_000;

/// Lets about `left` nanoseconds pass, rather less.
pub(crate) fn pause(left: u64) {
    if left > LATE {
        #[expect(
            clippy::disallowed_methods,
            reason = "this is the simulated card's own time, which the caller looks at again"
        )]
        std::thread::sleep(Duration::from_nanos((left - LATE).min(LONGEST)));
    } else {
        std::thread::yield_now();
    }
}
