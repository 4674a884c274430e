//! Named places at which a test can have processes killed (tests/chaos).
//!
//! Only in builds with the feature `fail-points`, which `aliquot-scheduler`
//! refuses; everywhere else [`at`] is empty. Such a build reads the file that
//! `ALIQUOT_FAIL_POINT_FILE` names at every passage: `POINT PASSAGE PID...`. At that passage of
//! that point it renames the file to `*.fired` and kills (-9) these processes,
//! itself among them or not.
//! Must not: do anything but kill, or stand where a lock is held that a
//! surviving process needs.

/// A place in the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Point {
    /// Bind is asked for; the books do not know it yet.
    BeforeReserve,
    /// Reserved; nothing is written.
    AfterReserve,
    /// Right before one POST of the Binding.
    BeforePost,
    /// The POST was answered; the answer is not used.
    AfterPost,
    /// The outcome is unknown; the same POST is about to be repeated.
    BetweenPosts,
    /// Created, and not yet kept as settled.
    AfterCreated,
    /// Settled, before its event.
    BeforeEvent,
    /// After its event, before kube-scheduler is answered.
    AfterEvent,
    /// Definitely not bound; the reservation stands.
    BeforeCancel,
    /// The reservation is freed, before kube-scheduler is answered.
    AfterCancel,
    /// A refused pod fits again; its annotation is not patched.
    NudgeBeforePatch,
    /// Its annotation is patched.
    NudgeAfterPatch,
    /// A pod refused by its node is about to be evicted.
    EvictBefore,
    /// It is evicted, before its event.
    EvictAfter,
    /// A new term needs a new list, which is not asked for.
    TermBeforeList,
    /// The new term's list is asked for.
    TermAfterList,
    /// All pods are listed; the books do not know it yet.
    BeforeReset,
    /// The books are those of the list.
    AfterReset,
    /// The watch shows a pod; the books do not know it yet.
    BeforeApply,
    /// The books know what the watch showed.
    AfterApply,
    /// Filter has found nodes and noted the best; kube-scheduler is not answered.
    FilterFits,
    /// Filter has noted a refusal; kube-scheduler is not answered.
    FilterRefuses,
}

/// Nothing, in a build that is shipped.
#[cfg(not(feature = "fail-points"))]
#[inline]
pub(crate) fn at(_: Point) {}

#[cfg(feature = "fail-points")]
pub(crate) use armed::at;

#[cfg(feature = "fail-points")]
mod armed {
    use std::path::{Path, PathBuf};
    use std::sync::LazyLock;

    use parking_lot::Mutex;
    use rustix::process::{Pid, Signal, kill_process};

    use super::{Point, due};

    /// Names the control file.
    const FILE: &str = "ALIQUOT_FAIL_POINT_FILE";

    static CONTROL: LazyLock<Option<PathBuf>> =
        LazyLock::new(|| std::env::var_os(FILE).map(PathBuf::from));
    static COUNTED: Mutex<(String, u32)> = Mutex::new((String::new(), 0));

    /// A passage of `point`.
    pub(crate) fn at(point: Point) {
        let Some(control) = CONTROL.as_deref() else {
            return;
        };
        let Ok(order) = std::fs::read_to_string(control) else {
            return;
        };
        let mut counted = COUNTED.lock();
        if let Some(pids) = due(&mut counted, &order, point) {
            fire(control, &pids);
        }
    }

    /// The others first, so that none of them sees this process end.
    fn fire(control: &Path, pids: &[i32]) {
        let _gone = std::fs::rename(control, control.with_extension("fired"));
        let me = rustix::process::getpid();
        let pids = pids.iter().filter_map(|pid| Pid::from_raw(*pid));
        let (mine, others): (Vec<_>, Vec<_>) = pids.partition(|pid| *pid == me);
        for pid in others.into_iter().chain(mine) {
            let _ended = kill_process(pid, Signal::KILL);
        }
    }
}

/// Counts a passage in `counted`, the order that is being counted and how often
/// its point was passed; whom to kill when this is the passage of the order.
#[cfg(any(test, feature = "fail-points"))]
fn due(counted: &mut (String, u32), order: &str, point: Point) -> Option<Vec<i32>> {
    let mut words = order.split_whitespace();
    if words.next()? != format!("{point:?}") {
        return None;
    }
    let passage: u32 = words.next()?.parse().ok()?;
    if counted.0 != order {
        *counted = (order.to_owned(), 0);
    }
    counted.1 += 1;
    (counted.1 == passage).then(|| words.filter_map(|pid| pid.parse().ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_passage_of_the_order_kills_and_a_new_order_counts_anew() {
        let mut counted = (String::new(), 0);
        let mut check = |order: &str, point, expected: Option<&[i32]>| {
            let pids = due(&mut counted, order, point);
            assert_eq!(pids.as_deref(), expected, "{order}");
        };
        check("AfterPost 2 11 12", Point::AfterPost, None);
        check("AfterPost 2 11 12", Point::BeforePost, None);
        check("AfterPost 2 11 12", Point::AfterPost, Some(&[11, 12]));
        check("AfterPost 2 11 12", Point::AfterPost, None);
        check("AfterPost 1 13", Point::AfterPost, Some(&[13]));
        check("", Point::AfterPost, None);
        check("AfterPost", Point::AfterPost, None);
    }
}
