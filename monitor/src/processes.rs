//! Processes of this host by `/proc`, and their end.
//!
//! Fed by: ids that the driver gave. Must not: end a process whose id went to another meanwhile,
//! or that is not where it was judged.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use aliquot_core::PodUid;
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
        let (start, leaves) = stat(&read("stat")?)?;
        // A program may end its first thread and work on in others; the kernel then says of the
        // first that it leaves and, in groups of version 1, that it is nowhere.
        let worker = leaves.then(|| worker(&folder)).flatten();
        let cgroups = match &worker {
            Some(thread) => fs::read_to_string(thread.join("cgroup")).ok(),
            None => read("cgroup"),
        };
        let inner = read("status").and_then(|status| inner(&status));
        Some(Known {
            life: Life { pid, start },
            place: cgroup::place(&cgroups?),
            inner,
            going: leaves && worker.is_none(),
        })
    }

    /// The cgroups of all containers that have a process, by pod and the runtime's id.
    pub fn containers(&self) -> BTreeMap<(PodUid, String), String> {
        let folders = fs::read_dir(&self.0).into_iter().flatten().flatten();
        let is_number = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
        let processes = folders.filter(|folder| folder.file_name().to_str().is_some_and(is_number));
        processes
            .filter_map(|process| {
                let text = fs::read_to_string(process.path().join("cgroup")).ok()?;
                let place = cgroup::place(&text);
                Some(((place.pod?, place.container?), place.path))
            })
            .collect()
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

/// A thread of a process that does not leave.
fn worker(process: &Path) -> Option<PathBuf> {
    let threads = fs::read_dir(process.join("task")).ok()?;
    let mut threads = threads.filter_map(|thread| Some(thread.ok()?.path()));
    threads.find(|thread| {
        let text = fs::read_to_string(thread.join("stat")).ok();
        text.and_then(|text| stat(&text))
            .is_some_and(|(_, leaves)| !leaves)
    })
}

/// When a process or a thread began, and whether it leaves, of its `stat`; the name in it may hold
/// anything.
fn stat(stat: &str) -> Option<(u64, bool)> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    let state = fields.next()?;
    let flags: u64 = fields.nth(5)?.parse().ok()?;
    let begun = fields.nth(12)?.parse().ok()?;
    let leaves = matches!(state, "Z" | "X") || flags & EXITING != 0;
    Some((begun, leaves))
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

    const LIVES: u32 = 4_194_304;
    const LEAVES: u32 = 4_194_308;

    fn line(state: &str, flags: u32) -> String {
        format!("7 (x) R 1) {state} 1 7 7 0 -1 {flags} 1 2 3 4 5 6 7 8 20 0 1 0 4711 99 1")
    }

    #[test]
    fn the_kernels_words_are_read() {
        assert_eq!(stat(&line("S", LIVES)), Some((4711, false)));
        assert_eq!(stat(&line("R", LEAVES)), Some((4711, true)));
        assert_eq!(stat(&line("Z", LIVES)), Some((4711, true)));
        assert_eq!(stat("7 (x"), None);
        assert_eq!(inner("Name:\tx\nNSpid:\t4711\t12\t1\nTgid: 1\n"), Some(1));
        assert_eq!(inner("NSpid:\t4711\n"), Some(4711));
        assert_eq!(inner("Name:\tx\n"), None);
    }

    #[test]
    fn a_program_whose_first_thread_ended_was_taken_for_one_that_goes_and_is_nowhere() {
        let pod = format!(
            "5:memory:/kubepods/pod{}/{}\n",
            "c".repeat(32),
            "a".repeat(64)
        );
        let nowhere = "5:memory:/\n0::/\n";
        // The threads beside the first: state, flags, cgroups.
        let check = |others: &[(&str, u32, &str)], going: bool, somewhere: bool| {
            let room = tempfile::tempdir().expect("a folder");
            let first = [("Z", LEAVES, nowhere)];
            for (id, (state, flags, cgroup)) in (7..).zip(first.iter().chain(others)) {
                let thread = room.path().join(format!("7/task/{id}"));
                fs::create_dir_all(&thread).expect("made");
                for folder in [Some(thread), (id == 7).then(|| room.path().join("7"))] {
                    let Some(folder) = folder else { continue };
                    fs::write(folder.join("stat"), line(state, *flags)).expect("written");
                    fs::write(folder.join("cgroup"), cgroup).expect("written");
                }
            }
            let found = Processes::at(room.path()).known(7).expect("it is there");
            assert_eq!(found.going, going, "{others:?}");
            assert_eq!(found.place.pod.is_some(), somewhere, "{others:?}");
        };
        check(&[("S", LIVES, &pod)], false, true);
        check(&[("X", LEAVES, nowhere), ("R", LIVES, &pod)], false, true);
        check(&[("D", LEAVES, nowhere)], true, false);
        check(&[], true, false);
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
