//! Fail points: places at which tests/chaos and tests/e2e have processes killed.
//!
//! Only in builds with the feature `fail-points`, which the shipped programs refuse; everywhere
//! else [`at`] is empty. No fail point is where a lock is held that a surviving process needs.

/// Nothing, in a build that is shipped.
#[cfg(not(feature = "fail-points"))]
#[inline]
pub fn at(_: &str) {}

/// A passage of `point`. The file that `ALIQUOT_FAIL_POINT_FILE` names orders kills:
/// `POINT PASSAGE PID...`. At that passage of that point it is renamed to `*.fired`, and these
/// processes, or this one if none is named, are killed (-9).
#[cfg(feature = "fail-points")]
pub fn at(point: &str) {
    use rustix::process::{Pid, Signal, getpid, kill_process};

    /// The current order, and how often its point was passed.
    static COUNTED: parking_lot::Mutex<(String, u32)> = parking_lot::Mutex::new((String::new(), 0));

    let Some(control) = std::env::var_os("ALIQUOT_FAIL_POINT_FILE") else {
        return;
    };
    let control = std::path::PathBuf::from(control);
    let Ok(order) = std::fs::read_to_string(&control) else {
        return;
    };
    let mut words = order.split_whitespace();
    if words.next() != Some(point) {
        return;
    }
    let passage: Option<u32> = words.next().and_then(|word| word.parse().ok());
    let mut counted = COUNTED.lock();
    if counted.0 != order {
        *counted = (order.clone(), 0);
    }
    counted.1 += 1;
    if passage != Some(counted.1) {
        return;
    }
    let _gone = std::fs::rename(&control, control.with_extension("fired"));
    let mut pids: Vec<Pid> = words
        .filter_map(|pid| Pid::from_raw(pid.parse().ok()?))
        .collect();
    if pids.is_empty() {
        pids.push(getpid());
    }
    // The others first, so that none of them sees this process end.
    pids.sort_by_key(|pid| *pid == getpid());
    for pid in pids {
        let _ended = kill_process(pid, Signal::KILL);
    }
}
