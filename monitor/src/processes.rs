//! Processes of this host by `/proc`, and their end.
//!
//! Fed by: ids that the driver gave. Must not: end a process whose id went to another meanwhile,
//! or that is not where it was judged.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use thiserror::Error;

use crate::cgroup::{self, Place};

/// `PF_EXITING`.
const EXITING: u64 = 4;

/// One process, told apart from a later one with the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Life {
    /// Its id here.
    pub pid: u32,
    /// When it began, in the kernel's ticks.
    pub start: u64,
}

/// What the kernel says of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// Itself.
    pub life: Life,
    /// Where it is.
    pub place: Place,
    /// Its id in its own pid namespace.
    pub inner: Option<u32>,
    /// It is on its way out; what it holds goes with it.
    pub going: bool,
}

/// Why a process was not ended.
#[derive(Debug, Error)]
pub enum EndError {
    /// It is gone, which is as good.
    #[error("the process is gone")]
    Gone,
    /// Its id belongs to another process, or it is in another container by now.
    #[error("the process is not the one that was judged")]
    Another,
    /// The system refused.
    #[error("cannot {step} the process: {source}")]
    Step {
        /// "open" or "kill".
        step: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// `/proc`, or what stands for it.
#[derive(Clone, Debug)]
pub struct Processes(PathBuf);

impl Default for Processes {
    fn default() -> Self {
        Self("/proc".into())
    }
}

impl Processes {
    /// Another place.
    pub fn at(proc: &Path) -> Self {
        Self(proc.to_owned())
    }

    /// What is known of a process; `None`: it is gone.
    pub fn known(&self, pid: u32) -> Option<Known> {
        let folder = self.0.join(pid.to_string());
        let read = |file: &str| fs::read_to_string(folder.join(file)).ok();
        let (start, going) = stat(&read("stat")?)?;
        let place = cgroup::place(&read("cgroup")?);
        let inner = read("status").and_then(|status| inner(&status));
        let life = Life { pid, start };
        Some(Known {
            life,
            place,
            inner,
            going,
        })
    }

    /// Ends a process, if it still is the one that was judged and where it was.
    pub fn end(&self, life: Life, place: &Place) -> Result<(), EndError> {
        let pid = i32::try_from(life.pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or(EndError::Gone)?;
        let step = |step: &'static str| {
            move |error| match error {
                rustix::io::Errno::SRCH => EndError::Gone,
                error => EndError::Step {
                    step,
                    source: error.into(),
                },
            }
        };
        // From here on the id cannot mean another process.
        let held = pidfd_open(pid, PidfdFlags::empty()).map_err(step("open"))?;
        let now = self.known(life.pid).ok_or(EndError::Gone)?;
        if now.life != life || now.place != *place {
            return Err(EndError::Another);
        }
        pidfd_send_signal(held, Signal::KILL).map_err(step("kill"))
    }
}

/// When a process began, and whether it is going, of `/proc/<pid>/stat`; the name in it may hold
/// anything.
fn stat(stat: &str) -> Option<(u64, bool)> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    let state = fields.next()?;
    let flags: u64 = fields.nth(5)?.parse().ok()?;
    let begun = fields.nth(12)?.parse().ok()?;
    let going = matches!(state, "Z" | "X") || flags & EXITING != 0;
    Some((begun, going))
}

/// The last of `NSpid:`.
fn inner(status: &str) -> Option<u32> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().last()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_kernels_words_are_read() {
        let line = |state: &str, flags: u32| {
            format!("7 (x) R 1) {state} 1 7 7 0 -1 {flags} 1 2 3 4 5 6 7 8 20 0 1 0 4711 99 1")
        };
        assert_eq!(stat(&line("S", 4_194_304)), Some((4711, false)));
        assert_eq!(stat(&line("R", 4_194_308)), Some((4711, true)));
        assert_eq!(stat(&line("Z", 4_194_304)), Some((4711, true)));
        assert_eq!(stat("7 (x"), None);
        assert_eq!(inner("Name:\tx\nNSpid:\t4711\t12\t1\nTgid: 1\n"), Some(1));
        assert_eq!(inner("NSpid:\t4711\n"), Some(4711));
        assert_eq!(inner("Name:\tx\n"), None);
    }

    #[test]
    fn only_the_process_that_was_judged_is_ended() {
        let processes = Processes::default();
        let mut child = Command::new("cat")
            .stdin(Stdio::piped())
            .spawn()
            .expect("cat");
        let known = processes.known(child.id()).expect("it lives");
        let later = Life {
            start: known.life.start + 1,
            ..known.life
        };
        let elsewhere = Place {
            pod: Some("other".into()),
            ..known.place.clone()
        };
        let refused = [
            processes.end(later, &known.place),
            processes.end(known.life, &elsewhere),
        ];
        for answer in refused {
            assert!(matches!(answer, Err(EndError::Another)), "{answer:?}");
        }
        assert!(child.try_wait().expect("asked").is_none(), "it lives on");
        processes.end(known.life, &known.place).expect("ended");
        assert!(!child.wait().expect("it ended").success());
        let gone = processes.end(known.life, &known.place);
        assert!(matches!(gone, Err(EndError::Gone)), "{gone:?}");
    }
}
