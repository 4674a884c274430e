//! Fail points: places at which tests/chaos can have processes killed.
//!
//! Only in builds with the feature `fail-points`, which `aliquot-scheduler` refuses; everywhere
//! else [`at`] is empty. Such a build reads the file that `ALIQUOT_FAIL_POINT_FILE` names at every
//! passage: `POINT PASSAGE PID...`. At that passage of that point it renames the file to `*.fired`
//! and kills (-9) these processes, itself among them or not. No fail point is where a lock is held
//! that a surviving process needs.

/// A place in the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Point {
    /// Bind was called; nothing is reserved yet.
    BeforeReserve,
    /// Reserved; nothing is written.
    AfterReserve,
    /// Right before one POST of the Binding.
    BeforePost,
    /// The POST was answered; the response is not used yet.
    AfterPost,
    /// The outcome is unknown; the same POST is about to be repeated.
    BetweenPosts,
    /// Created, and not yet recorded as settled.
    AfterCreated,
    /// Settled, before its event.
    BeforeEvent,
    /// After its event, before kube-scheduler is answered.
    AfterEvent,
    /// Definitely not bound; the reservation is not released yet.
    BeforeCancel,
    /// The reservation is released, before kube-scheduler is answered.
    AfterCancel,
    /// A refused pod fits again; its annotation is not patched yet.
    RequeueBeforePatch,
    /// Its annotation is patched.
    RequeueAfterPatch,
    /// A pod refused by its node is about to be evicted.
    EvictBefore,
    /// It is evicted, before its event.
    EvictAfter,
    /// A resize is reserved; nothing is written.
    ResizeReserved,
    /// A resize, or how far it is, is about to be written.
    ResizeBeforePatch,
    /// It is written, before its event.
    ResizeAfterPatch,
    /// A new term needs a new list, which is not requested yet.
    TermBeforeList,
    /// The new term's list is requested.
    TermAfterList,
    /// All pods are listed; the ledger is not updated yet.
    BeforeReset,
    /// The ledger is that of the list.
    AfterReset,
    /// The watch shows a pod; the ledger is not updated yet.
    BeforeApply,
    /// The ledger is updated by the watch.
    AfterApply,
    /// Filter has found nodes and claimed the best; kube-scheduler is not answered yet.
    FilterFits,
    /// Filter has recorded a refusal; kube-scheduler is not answered yet.
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

    /// Kills the others first, so that none of them sees this process end.
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

/// Counts a passage in `counted` (the current order, and how often its point was passed); returns
/// the processes to kill if this is the passage of the order.
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
    fn fires_at_the_ordered_passage_only() {
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
