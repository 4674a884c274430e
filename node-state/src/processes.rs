//! Reads processes from `/proc`, and kills them. A process is never killed if its pid was reused or
//! if it moved to another cgroup since it was sampled.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use aliquot_core::PodUid;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use thiserror::Error;

use crate::cgroup::{self, ProcessLocation};

/// `PF_EXITING`.
const EXITING: u64 = 4;
/// What the kernel lets a program start with: arguments and environment together, in bytes.
const LONGEST_START: u64 = 6 << 20;
/// How many values of a variable are kept for each pod, whose processes may each have another one,
/// and how many characters of each.
const VALUES: usize = 16;
const LONGEST_VALUE: usize = 16 << 10;

/// A process, distinct from a later one with the same pid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessIdentity {
    /// Its pid on the host.
    pub pid: u32,
    /// Its start time, in the kernel's ticks.
    pub start: u64,
}

/// What the kernel reports about a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessStatus {
    pub identity: ProcessIdentity,
    pub location: ProcessLocation,
    /// Its pid in its own pid namespace.
    pub container_pid: Option<u32>,
    /// It is exiting, and releases what it uses.
    pub exiting: bool,
}

#[derive(Debug, Error)]
pub enum KillError {
    #[error("the process has ended")]
    Gone,
    /// Its pid belongs to another process now, or it moved to another container.
    #[error("the pid now belongs to another process or container")]
    Different,
    #[error("cannot {step} the process: {source}")]
    Step {
        /// "open" or "signal".
        step: &'static str,
        source: io::Error,
    },
}

/// `/proc`, or another directory in tests.
#[derive(Clone, Debug)]
pub struct Processes(PathBuf);

impl Default for Processes {
    fn default() -> Self {
        Self("/proc".into())
    }
}

impl Processes {
    /// Reads another directory.
    pub fn at(proc: &Path) -> Self {
        Self(proc.to_owned())
    }

    /// Reads a process; `None` if it has ended, or cannot be read.
    pub fn info(&self, pid: u32) -> Option<ProcessStatus> {
        let folder = self.0.join(pid.to_string());
        let read = |file: &str| text(&folder.join(file));
        let (start, exiting) = stat(&read("stat")?)?;
        // A program may end its first thread and continue in others; the kernel then reports the first
        // as exiting and, in cgroup v1, in no cgroup.
        let live_thread = exiting.then(|| live_thread(&folder)).flatten();
        let cgroups = match &live_thread {
            Some(thread) => text(&thread.join("cgroup")),
            None => read("cgroup"),
        };
        let container_pid = read("status").and_then(|status| container_pid(&status));
        Some(ProcessStatus {
            identity: ProcessIdentity { pid, start },
            location: cgroup::location(&cgroups?),
            container_pid,
            exiting: exiting && live_thread.is_none(),
        })
    }

    /// Whether there is a process with this id; needs no descriptor.
    pub fn exists(&self, pid: u32) -> bool {
        self.0.join(pid.to_string()).is_dir()
    }

    /// The cgroups of all containers with a process, by pod and the runtime's id.
    pub fn containers(&self) -> BTreeMap<(PodUid, String), String> {
        let folders = fs::read_dir(&self.0).into_iter().flatten().flatten();
        let is_number = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
        let processes = folders.filter(|folder| folder.file_name().to_str().is_some_and(is_number));
        processes
            .filter_map(|process| {
                let location = location(&process.path())?;
                Some(((location.pod?, location.container?), location.path))
            })
            .collect()
    }

    /// Kills a process if it is still the same one, in the same place.
    pub fn kill(
        &self,
        identity: ProcessIdentity,
        location: &ProcessLocation,
    ) -> Result<(), KillError> {
        self.signal(identity, location, Signal::KILL)
    }

    /// Sends it SIGUSR1 under the same conditions.
    pub fn notify(
        &self,
        identity: ProcessIdentity,
        location: &ProcessLocation,
    ) -> Result<(), KillError> {
        self.signal(identity, location, Signal::USR1)
    }

    fn signal(
        &self,
        identity: ProcessIdentity,
        location: &ProcessLocation,
        signal: Signal,
    ) -> Result<(), KillError> {
        let pid = i32::try_from(identity.pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or(KillError::Gone)?;
        let step = |step: &'static str| {
            move |error| match error {
                rustix::io::Errno::SRCH => KillError::Gone,
                error => KillError::Step {
                    step,
                    source: error.into(),
                },
            }
        };
        // From here on the pid cannot be reused.
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(step("open"))?;
        let now = self.info(identity.pid).ok_or(KillError::Gone)?;
        if now.identity != identity || now.location != *location {
            return Err(KillError::Different);
        }
        pidfd_send_signal(pidfd, signal).map_err(step("signal"))
    }
}

/// A file of a process. Its name, and those of cgroups below its container's, may be any bytes.
fn text(path: &Path) -> Option<String> {
    let bytes = fs::read(path).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The id of the container that a process is in.
pub fn container_of(pid: u32) -> Option<String> {
    location(Path::new(&format!("/proc/{pid}")))?.container
}

fn location(process: &Path) -> Option<ProcessLocation> {
    Some(cgroup::location(&text(&process.join("cgroup"))?))
}

/// Which of these pods still have a process, by the processes' cgroups under `proc`. Ignores a
/// process that ends meanwhile.
pub fn alive(proc: &Path, pods: &BTreeSet<PodUid>) -> io::Result<BTreeSet<PodUid>> {
    let mut found = BTreeSet::new();
    if pods.is_empty() {
        return Ok(found);
    }
    for entry in fs::read_dir(proc)? {
        let pod = location(&entry?.path()).and_then(|found| found.pod);
        found.extend(pod.filter(|uid| pods.contains(uid)));
    }
    Ok(found)
}

/// The values that a variable had when the processes of these pods started, by the processes under
/// `proc`; not all where there are many. Skips processes that end meanwhile or lack the variable.
pub fn variable_at_start(
    proc: &Path,
    pods: &BTreeSet<PodUid>,
    variable: &str,
) -> io::Result<BTreeMap<PodUid, BTreeSet<String>>> {
    let mut found: BTreeMap<PodUid, BTreeSet<String>> = BTreeMap::new();
    if pods.is_empty() {
        return Ok(found);
    }
    for entry in fs::read_dir(proc)? {
        let path = entry?.path();
        let pod = location(&path).and_then(|found| found.pod);
        let Some(uid) = pod.filter(|uid| pods.contains(uid)) else {
            continue;
        };
        let environment = given_at_start(&path.join("environ"));
        let mut variables = environment.split(|byte| *byte == 0);
        let value = variables.find_map(|one| {
            let one = std::str::from_utf8(one).ok()?;
            let value = one.strip_prefix(variable)?.strip_prefix('=')?;
            Some(value.chars().take(LONGEST_VALUE).collect::<String>())
        });
        let values = found.entry(uid).or_default();
        if values.len() < VALUES {
            values.extend(value);
        }
    }
    Ok(found)
}

/// A process's `environ` or `cmdline`; empty if it cannot be read. A process may tell the kernel that
/// all of its memory is its environment (`PR_SET_MM_MAP`), so no more is read than it can start with.
pub fn given_at_start(path: &Path) -> Vec<u8> {
    let mut given = Vec::new();
    let read = File::open(path).and_then(|file| file.take(LONGEST_START).read_to_end(&mut given));
    read.map_or_else(|_| Vec::new(), |_| given)
}

/// A thread of the process that is not exiting.
fn live_thread(process: &Path) -> Option<PathBuf> {
    let threads = fs::read_dir(process.join("task")).ok()?;
    let mut threads = threads.filter_map(|thread| Some(thread.ok()?.path()));
    threads.find(|thread| {
        text(&thread.join("stat"))
            .and_then(|text| stat(&text))
            .is_some_and(|(_, exiting)| !exiting)
    })
}

/// Start time of a process or a thread, and whether it is exiting, from its `stat`; the name in it
/// may contain anything.
fn stat(stat: &str) -> Option<(u64, bool)> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    let state = fields.next()?;
    let flags: u64 = fields.nth(5)?.parse().ok()?;
    let begun = fields.nth(12)?.parse().ok()?;
    let exiting = matches!(state, "Z" | "X") || flags & EXITING != 0;
    Some((begun, exiting))
}

/// The last field of `NSpid:`.
fn container_pid(status: &str) -> Option<u32> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().last()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;
    use std::process::{Command, Stdio};

    use super::*;

    const LIVE_FLAGS: u32 = 4_194_304;
    const EXITING_FLAGS: u32 = 4_194_308;

    fn line(state: &str, flags: u32) -> String {
        format!("7 (x) R 1) {state} 1 7 7 0 -1 {flags} 1 2 3 4 5 6 7 8 20 0 1 0 4711 99 1")
    }

    #[test]
    fn parses_proc_stat_and_status() {
        assert_eq!(stat(&line("S", LIVE_FLAGS)), Some((4711, false)));
        assert_eq!(stat(&line("R", EXITING_FLAGS)), Some((4711, true)));
        assert_eq!(stat(&line("Z", LIVE_FLAGS)), Some((4711, true)));
        assert_eq!(stat("7 (x"), None);
        assert_eq!(
            container_pid("Name:\tx\nNSpid:\t4711\t12\t1\nTgid: 1\n"),
            Some(1)
        );
        assert_eq!(container_pid("NSpid:\t4711\n"), Some(4711));
        assert_eq!(container_pid("Name:\tx\n"), None);
    }

    #[test]
    fn finds_process_whose_name_and_cgroup_are_no_text() {
        let dir = tempfile::tempdir().expect("tempdir");
        let folder = dir.path().join("7");
        fs::create_dir(&folder).expect("made");
        let (pod, id) = ("c".repeat(32), "a".repeat(64));
        let path = format!("/kubepods/pod{pod}/{id}");
        let (stat, cgroup) = (line("S", LIVE_FLAGS), format!("0::{path}/"));
        for (file, before, after) in [
            ("stat", "7 (", &stat["7 (x".len()..]),
            ("status", "Name:\t", "\nNSpid:\t7\t3\n"),
            ("cgroup", cgroup.as_str(), "\n"),
        ] {
            let content = [before.as_bytes(), b"\xff", after.as_bytes()].concat();
            fs::write(folder.join(file), content).expect("written");
        }
        let found = Processes::at(dir.path()).info(7).expect("it is there");
        assert_eq!((found.container_pid, found.exiting), (Some(3), false));
        assert_eq!(found.location.path, path);
        let asked = BTreeSet::from([PodUid::from(pod)]);
        assert_eq!(alive(dir.path(), &asked).expect("readable"), asked);
    }

    #[test]
    fn locates_process_by_live_thread_when_first_ended() {
        let pod = format!(
            "5:memory:/kubepods/pod{}/{}\n",
            "c".repeat(32),
            "a".repeat(64)
        );
        let nowhere = "5:memory:/\n0::/\n";
        // The threads besides the first: state, flags, cgroups.
        let check = |others: &[(&str, u32, &str)], exiting: bool, somewhere: bool| {
            let dir = tempfile::tempdir().expect("a folder");
            let first = [("Z", EXITING_FLAGS, nowhere)];
            for (id, (state, flags, cgroup)) in (7..).zip(first.iter().chain(others)) {
                let thread = dir.path().join(format!("7/task/{id}"));
                fs::create_dir_all(&thread).expect("made");
                for folder in [Some(thread), (id == 7).then(|| dir.path().join("7"))] {
                    let Some(folder) = folder else { continue };
                    fs::write(folder.join("stat"), line(state, *flags)).expect("written");
                    fs::write(folder.join("cgroup"), cgroup).expect("written");
                }
            }
            let found = Processes::at(dir.path()).info(7).expect("it is there");
            assert_eq!(found.exiting, exiting, "{others:?}");
            assert_eq!(found.location.pod.is_some(), somewhere, "{others:?}");
        };
        check(&[("S", LIVE_FLAGS, &pod)], false, true);
        check(
            &[("X", EXITING_FLAGS, nowhere), ("R", LIVE_FLAGS, &pod)],
            false,
            true,
        );
        check(&[("D", EXITING_FLAGS, nowhere)], true, false);
        check(&[], true, false);
    }

    #[test]
    fn kills_only_same_process_at_same_location() {
        let processes = Processes::default();
        let mut child = Command::new("cat")
            .stdin(Stdio::piped())
            .spawn()
            .expect("cat");
        let info = processes.info(child.id()).expect("it lives");
        let later = ProcessIdentity {
            start: info.identity.start + 1,
            ..info.identity
        };
        let elsewhere = ProcessLocation {
            pod: Some("other".into()),
            ..info.location.clone()
        };
        let refused = [
            processes.kill(later, &info.location),
            processes.kill(info.identity, &elsewhere),
        ];
        for answer in refused {
            assert!(matches!(answer, Err(KillError::Different)), "{answer:?}");
        }
        assert!(child.try_wait().expect("asked").is_none(), "it lives on");
        processes
            .kill(info.identity, &info.location)
            .expect("ended");
        assert!(!child.wait().expect("it ended").success());
        let gone = processes.kill(info.identity, &info.location);
        assert!(matches!(gone, Err(KillError::Gone)), "{gone:?}");
    }

    #[test]
    fn reads_bounded_part_of_an_environment() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("environ");
        let file = File::create(&path).expect("made");
        file.write_all_at(b"SEE=1\0", LONGEST_START - 6)
            .expect("written");
        file.write_all_at(b"SEE=2\0", LONGEST_START)
            .expect("written");
        let given = given_at_start(&path);
        assert_eq!(given.len() as u64, LONGEST_START);
        assert!(given.ends_with(b"SEE=1\0"));
        assert!(given_at_start(&dir.path().join("gone")).is_empty());
    }

    #[test]
    fn treats_pod_as_alive_while_cgroup_has_process() {
        let proc = tempfile::tempdir().expect("tempdir");
        let uid = |start| format!("{start}-{}", "b".repeat(32));
        let [one, two, three] = ["1a", "3c", "5e"].map(uid);
        let slice = format!("kubepods-pod{}.slice", two.replace('-', "_"));
        for (pid, cgroup) in [
            // A tenant may name a cgroup below its own like another pod's.
            (
                "10",
                format!("0::/kubepods/burstable/pod{one}/cri/pod{three}\n"),
            ),
            ("11", format!("0::/kubepods.slice/{slice}/x\n")),
            ("self", "0::/init\n".to_owned()),
        ] {
            fs::create_dir(proc.path().join(pid)).expect("made");
            fs::write(proc.path().join(pid).join("cgroup"), cgroup).expect("written");
        }
        let environment = "PATH=/bin\0SEES=no\0SEE=MIG-a\0";
        fs::write(proc.path().join("11/environ"), environment).expect("written");
        let environment = format!("SEE={}", "x".repeat(1 << 20));
        fs::write(proc.path().join("10/environ"), environment).expect("written");
        let [one, two, three] = [one, two, three].map(PodUid::from);
        let asked = BTreeSet::from([one.clone(), two.clone(), three]);
        let expected = BTreeSet::from([one.clone(), two.clone()]);
        assert_eq!(alive(proc.path(), &asked).expect("readable"), expected);
        let seen = variable_at_start(proc.path(), &asked, "SEE").expect("readable");
        let expected = [(one, "x".repeat(LONGEST_VALUE)), (two, "MIG-a".to_owned())];
        let expected = expected.map(|(pod, value)| (pod, BTreeSet::from([value])));
        assert_eq!(seen, BTreeMap::from(expected));
    }
}
