//! What the monitor reports to the agent, which publishes it for the node: GPUs of which the driver
//! does not report everything.

use std::collections::BTreeSet;
use std::path::PathBuf;

use aliquot_node_state::monitor_reports;

/// A file and what it contains: a list of UUIDs.
#[derive(Debug)]
pub struct GpuListReport {
    path: PathBuf,
    written: Option<BTreeSet<String>>,
}

impl GpuListReport {
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            written: None,
        }
    }

    /// Writes the GPUs of a sample, unless the file has them; for those that the sample says nothing
    /// about (`unknown`), nothing changes. Blocks.
    pub fn write(&mut self, gpus: &BTreeSet<String>, unknown: &BTreeSet<String>) {
        let known = self.written.iter().flatten();
        let gpus: BTreeSet<String> = known
            .filter(|gpu| unknown.contains(*gpu))
            .chain(gpus)
            .cloned()
            .collect();
        if self.written.as_ref() == Some(&gpus) {
            return;
        }
        match monitor_reports::write(&self.path, &gpus) {
            Ok(()) => self.written = Some(gpus),
            Err(error) => {
                let path = self.path.display();
                tracing::warn!(%path, %error, "cannot write a list of GPUs for the agent; retrying at the next sample");
            }
        }
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
}
