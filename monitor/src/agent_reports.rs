//! What the monitor reports to the agent, which publishes it for the node: GPUs of which the driver
//! does not report everything, and memory that processes outside every share hold.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use aliquot_core::Mib;
use aliquot_node_state::monitor_reports::{self, GpuMemory, GpuSet};
use serde::Serialize;

/// Held memory is published in steps of this: a display or a daemon of the driver's holds less.
const STEP: u64 = 256 << 20;
/// How long a decrease must last before it is published, so that a process that comes and goes does
/// not change the node's annotation each time.
const LOWER_AFTER: Duration = Duration::from_mins(1);

#[derive(Debug)]
struct Report<T> {
    path: PathBuf,
    written: Option<T>,
}

impl<T: PartialEq + Serialize> Report<T> {
    /// Writes this unless the file has it. Blocks.
    fn put(&mut self, report: T) {
        if self.written.as_ref() == Some(&report) {
            return;
        }
        match monitor_reports::write(&self.path, &report) {
            Ok(()) => self.written = Some(report),
            Err(error) => {
                let path = self.path.display();
                tracing::warn!(%path, %error, "cannot write a report for the agent; retrying at the next sample");
            }
        }
    }
}

#[derive(Debug)]
pub struct GpuListReport(Report<GpuSet>);

impl GpuListReport {
    pub fn new(path: PathBuf) -> Self {
        Self(Report {
            path,
            written: None,
        })
    }

    /// Writes the GPUs of a sample; for those that the sample says nothing about (`unknown`), nothing
    /// changes. Blocks.
    pub fn write(&mut self, gpus: &BTreeSet<String>, unknown: &BTreeSet<String>) {
        let written = self.0.written.iter().flatten();
        let known = written.filter(|gpu| unknown.contains(*gpu));
        let gpus = known.chain(gpus).cloned().collect();
        self.0.put(gpus);
    }
}

/// What is published of the memory that processes outside every share hold of one GPU.
#[derive(Debug, Default)]
struct Held {
    published: Mib,
    /// Since when less is held.
    less_since: Option<Duration>,
}

impl Held {
    /// A sample has so many bytes at `now`. More is published at once.
    fn update(&mut self, bytes: u64, now: Duration) {
        let held = Mib((bytes / STEP) * (STEP >> 20));
        let since = *self.less_since.get_or_insert(now);
        if held >= self.published || now.saturating_sub(since) >= LOWER_AFTER {
            *self = Self {
                published: held,
                less_since: None,
            };
        }
    }
}

/// The memory that processes outside every share hold of each GPU, as the node publishes it.
#[derive(Debug)]
pub struct UnmanagedReport {
    report: Report<GpuMemory>,
    gpus: BTreeMap<String, Held>,
}

impl UnmanagedReport {
    /// Continues with what the file says.
    pub fn new(path: PathBuf) -> Self {
        let written: Option<GpuMemory> = monitor_reports::read(&path);
        let mut gpus: BTreeMap<String, Held> = BTreeMap::new();
        for (gpu, memory) in written.iter().flatten() {
            gpus.entry(gpu.clone()).or_default().published = *memory;
        }
        let report = Report { path, written };
        Self { report, gpus }
    }

    /// Writes what follows from the bytes of a sample at `now`; for GPUs that the sample says nothing
    /// about (`unknown`), nothing changes. Blocks.
    pub fn write(
        &mut self,
        bytes: &BTreeMap<&str, u64>,
        unknown: &BTreeSet<String>,
        now: Duration,
    ) {
        for gpu in bytes.keys() {
            self.gpus.entry((*gpu).to_owned()).or_default();
        }
        for (gpu, held) in &mut self.gpus {
            if !unknown.contains(gpu) {
                let bytes = bytes.get(gpu.as_str()).copied();
                held.update(bytes.unwrap_or(0), now);
            }
        }
        self.gpus.retain(|_, held| held.published > Mib(0));
        let gpus = self.gpus.iter();
        let published = gpus.map(|(gpu, held)| (gpu.clone(), held.published));
        self.report.put(published.collect());
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn writes_uncorrected_gpus_when_they_change() {
        let dir = tempfile::tempdir().expect("tempdir");
        let file = dir.path().join("state/uncorrected.json");
        let mut report = GpuListReport::new(file.clone());
        let (none, gpus) = (BTreeSet::new(), BTreeSet::from(["GPU-a".to_owned()]));
        report.write(&gpus, &none);
        fs::create_dir_all(dir.path().join("state/accepted")).expect("made");
        let written = || fs::read_to_string(&file).expect("written");
        report.write(&gpus, &none);
        assert_eq!(written(), r#"["GPU-a"]"#);
        fs::remove_file(&file).expect("removed");
        report.write(&gpus, &none);
        report.write(&none, &gpus);
        assert!(!file.exists(), "nothing has changed");
        report.write(&none, &none);
        assert_eq!(written(), "[]");
    }

    /// What is published after samples of so many MiB, each at a second.
    fn published(samples: &[(u64, u64)]) -> Vec<u64> {
        let mut held = Held::default();
        let after = samples.iter().map(|(second, mib)| {
            held.update(mib << 20, Duration::from_secs(*second));
            held.published.0
        });
        after.collect()
    }

    #[test]
    fn publishes_more_at_once_and_less_after_a_minute() {
        // A display holds a little.
        assert_eq!(published(&[(0, 0), (1, 255)]), [0, 0]);
        assert_eq!(published(&[(0, 60_000), (1, 60_200)]), [59_904, 60_160]);
        let ended = [(0, 1024), (1, 0), (60, 0), (61, 0)];
        assert_eq!(published(&ended), [1024, 1024, 1024, 0]);
        // It comes and goes.
        let busy: Vec<(u64, u64)> = (0..300).map(|second| (second, second % 50 * 100)).collect();
        let changes = published(&busy[49..]);
        assert!(changes.iter().all(|mib| *mib == 4864), "{changes:?}");
    }

    #[test]
    fn writes_held_memory_when_it_changes_and_continues_after_a_restart() {
        let dir = crate::testing::state_directory();
        let file = dir.path().join("unmanaged.json");
        let text = || fs::read_to_string(&file).expect("written");
        let at = Duration::from_secs;
        let held = BTreeMap::from([("GPU-a", 1 << 30), ("GPU-b", 1 << 20)]);
        let (none, nothing) = (BTreeSet::new(), BTreeMap::new());
        let mut report = UnmanagedReport::new(file.clone());
        report.write(&held, &none, at(1));
        assert_eq!(text(), r#"{"GPU-a":1024}"#);
        // Its processes are not yet known to the new monitor.
        let mut report = UnmanagedReport::new(file.clone());
        report.write(&nothing, &none, at(2));
        // Nor are they while its driver does not answer.
        report.write(&nothing, &["GPU-a".to_owned()].into(), at(90));
        report.write(&held, &none, at(91));
        fs::remove_file(&file).expect("removed");
        report.write(&nothing, &none, at(92));
        assert!(!file.exists(), "nothing has changed");
        report.write(&nothing, &none, at(152));
        assert_eq!(text(), "{}");
    }
}
