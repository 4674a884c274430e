//! Memory beyond requests, which is lent and called back, with real processes. `limiter-bench lending`
//! runs the long form, part of `make bench`.

use std::time::Duration;

use aliquot_cluster::starvation::{Attempts, Measurement};
use aliquot_limiter_tests::lending::{LendingResult, Limits, run};

const GRACE: Duration = Duration::from_secs(2);

/// A round of ten tenants. A starved host ends a call-back late, and tenants borrow less meanwhile.
fn check(limits: Limits) -> LendingResult {
    let mut attempts = Attempts::new(format!("{limits:?} lends what is idle"));
    loop {
        let measured = Measurement::of_machine();
        let result = run(limits, Duration::ZERO, GRACE).expect("a scene");
        assert_eq!((result.refused, result.wrong), (0, 0), "{result:?}");
        assert!(result.granted > 100, "{result:?}");
        if result.usable >= 95.0 {
            return result;
        }
        let again = attempts.again(format!("{result:?}"), measured.starved());
        again.expect("95 % of it, at least");
    }
}

#[test]
fn ten_tenants_get_what_they_requested_and_borrow_the_rest() {
    for profile in [None, Some("harsh")] {
        let result = check(Limits::Library(profile));
        assert!(
            result.ended > 0,
            "nobody had to give anything back: {result:?}"
        );
    }
}

#[test]
fn driver_limits_lend_memory_and_end_nobody() {
    let result = check(Limits::Driver);
    assert_eq!(result.ended, 0, "{result:?}");
}
