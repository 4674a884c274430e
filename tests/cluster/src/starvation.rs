//! For how long the machine gave processes no processor, by the kernel's own counts, and attempts
//! that are repeated for that reason only. Where the kernel does not count, nothing was starved.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use parking_lot::Mutex;

/// Nanoseconds that each thread of some processes waited for a processor so far.
pub type Waits = BTreeMap<(u32, String), u64>;

/// The waits of all threads of these processes, from `/proc/PID/task/*/schedstat`.
pub fn waits(pids: impl IntoIterator<Item = u32>) -> Waits {
    let all = pids.into_iter().flat_map(threads);
    all.collect()
}

/// The waits of one process; none if it has ended.
fn threads(pid: u32) -> Vec<((u32, String), u64)> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten();
    let found = tasks.filter_map(|task| {
        let task = task.ok()?;
        let wait = waited(&task.path())?;
        Some(((pid, task.file_name().into_string().ok()?), wait))
    });
    found.collect()
}

/// The second of three numbers: nanoseconds in a queue for a processor.
fn waited(task: &Path) -> Option<u64> {
    let text = fs::read_to_string(task.join("schedstat")).ok()?;
    text.split(' ').nth(1)?.parse().ok()
}

/// Nanoseconds that the thread with the longest wait waited between two samples.
pub fn longest(before: &Waits, after: &Waits) -> u64 {
    let more = after.iter().map(|(thread, now)| {
        let then = before.get(thread).copied().unwrap_or(0);
        now.saturating_sub(then)
    });
    more.max().unwrap_or(0)
}

/// A measurement that has begun.
#[derive(Debug)]
pub struct Measurement {
    began: Instant,
    /// None: of the whole machine.
    pids: Option<Vec<u32>>,
    waits: Waits,
    pressure: Duration,
    stolen: Duration,
}

impl Measurement {
    /// Of these processes and this one: what the thread with the longest wait waited.
    pub fn of(pids: impl IntoIterator<Item = u32>) -> Self {
        let pids = pids.into_iter().chain([std::process::id()]);
        Self::begin(Some(pids.collect()))
    }

    /// Of the machine: the time in which any process waited. For what does not fill the machine by
    /// itself.
    pub fn of_machine() -> Self {
        Self::begin(None)
    }

    fn begin(pids: Option<Vec<u32>>) -> Self {
        Self {
            began: Instant::now(),
            waits: waits(pids.iter().flatten().copied()),
            pids,
            pressure: pressure(),
            stolen: stolen(),
        }
    }

    /// What was starved until now.
    pub fn starved(&self) -> Starved {
        let waited = match &self.pids {
            Some(pids) => Duration::from_nanos(longest(&self.waits, &waits(pids.iter().copied()))),
            None => pressure().saturating_sub(self.pressure),
        };
        Starved {
            time: waited + stolen().saturating_sub(self.stolen),
            of: self.began.elapsed(),
        }
    }
}

/// The time in which any process waited for a processor, since the machine was started.
fn pressure() -> Duration {
    let text = fs::read_to_string("/proc/pressure/cpu").unwrap_or_default();
    let some = text.lines().find(|line| line.starts_with("some "));
    let total = some.and_then(|line| line.rsplit_once("total=")?.1.parse().ok());
    Duration::from_micros(total.unwrap_or(0))
}

/// The time for which another virtual machine had a processor, on average over all, since the machine
/// was started.
fn stolen() -> Duration {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let rows = text.lines().filter(|line| line.starts_with("cpu"));
    let processors = u32::try_from(rows.clone().count().saturating_sub(1)).unwrap_or(1);
    let mut rows = rows;
    let ticks = rows
        .next()
        .and_then(|all| all.split_whitespace().nth(8)?.parse().ok());
    // In hundredths of a second on every architecture.
    Duration::from_millis(10 * ticks.unwrap_or(0)) / processors.max(1)
}

/// For how much of a time the machine gave no processor.
#[derive(Clone, Copy, Debug)]
pub struct Starved {
    /// Without one.
    pub time: Duration,
    /// Of this time.
    pub of: Duration,
}

impl Display for Starved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (time, of) = (self.time.as_millis(), self.of.as_millis());
        write!(f, "starved {time} ms of {of} ms")
    }
}

/// Percent of its time for which an attempt must have been starved to be repeated.
const EXCUSED: u32 = 10;
/// Attempts in all.
const MOST: usize = 3;

/// All repetitions of this process.
static REPEATED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The attempts of one test at what takes processors: a lower bound of what something gets, or an
/// upper bound of how long it takes. Where something gets too much, there is no other attempt.
#[derive(Debug)]
pub struct Attempts {
    name: String,
    missed: Vec<String>,
}

impl Attempts {
    /// None yet; the name is that of the test or of what it measures.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            missed: Vec::new(),
        }
    }

    /// Permits another attempt after one that missed its bound, and reports it.
    ///
    /// # Errors
    /// The machine did not starve that one, or it was the third: the test has failed.
    pub fn again(&mut self, missed: impl Display, starved: Starved) -> Result<()> {
        let line = format!("repeated: {} ({starved}): {missed}", self.name);
        self.missed.push(format!("{missed} ({starved})"));
        let all = self.missed.join("; ");
        ensure!(
            starved.time * 100 >= starved.of * EXCUSED,
            "{}: {all}; only {EXCUSED} % would excuse another attempt",
            self.name
        );
        let name = &self.name;
        ensure!(self.missed.len() < MOST, "{name}: {MOST} attempts: {all}");
        // Not println: the test harness would keep it to itself.
        let _closed = std::io::stderr().write_all(format!("{line}\n").as_bytes());
        REPEATED.lock().push(line);
        Ok(())
    }
}

/// A line for each repetition so far in this process.
pub fn repeated() -> Vec<String> {
    REPEATED.lock().clone()
}
