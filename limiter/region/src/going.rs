//! Whether a process is on its way out: its mappings, and with them its lock, are gone already,
//! but the kernel has not yet closed its files, so a driver still holds its memory.
//!
//! Fed by: `/proc`, with a pid of our own namespace. Must not: wait, or take a process that merely
//! got the number of a dead one for that.

use std::fs;

/// `PF_EXITING`.
const EXITING: u64 = 4;

/// All threads of this process are exiting, and some have not come to their end. False where
/// nobody knows.
pub(crate) fn is_going(pid: u64) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return false;
    };
    let stats = threads
        .flatten()
        .filter_map(|thread| fs::read_to_string(thread.path().join("stat")).ok());
    let mut exiting = stats.filter_map(|stat| exits(&stat));
    // Who runs still has a mapping: it is another process with the same number.
    exiting.next().is_some_and(|first| first) && exiting.all(|exits| exits)
}

/// What `/proc/<pid>/task/<tid>/stat` says; `None` of a thread that has ended: a zombie has closed
/// its files.
fn exits(stat: &str) -> Option<bool> {
    // The name of a program may hold anything; what follows its bracket is plain.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    let state = fields.next().filter(|state| !matches!(*state, "Z" | "X"));
    let flags: u64 = fields.nth(5)?.parse().ok()?;
    state.map(|_| flags & EXITING != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_exits_and_has_not_ended_is_going() {
        let check = |stat: &str, expected| assert_eq!(exits(stat), expected, "{stat}");
        check("7 (a) R 1 7 7 0 -1 4194304 0 0", Some(false));
        check("7 (a) R 1 7 7 0 -1 4194308 0 0", Some(true));
        check("7 (a) D 1 7 7 0 -1 4 0 0", Some(true));
        check("7 (a) Z 1 7 7 0 -1 4194316 0 0", None);
        check("7 (a) X 1 7 7 0 -1 4194316 0 0", None);
        check("7 (x) R 1 4 4) S 1 7 7 0 -1 4194304 0 0", Some(false));
        check("7 (a", None);
        check("", None);
    }

    #[test]
    fn neither_this_process_nor_one_that_is_not_there_is_going() {
        assert!(!is_going(u64::from(std::process::id())));
        assert!(!is_going(u64::MAX));
    }
}
