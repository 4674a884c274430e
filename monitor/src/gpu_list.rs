//! Lists of GPUs in files of the state directory, by which the agent learns what the driver does not
//! report here: it publishes that for the node.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use crate::actions::write_atomically;
use crate::log_rate_limit::LogRateLimit;

/// Of GPUs on which compute shares are not corrected.
const UNCORRECTED: &str = "uncorrected.json";
/// Of GPUs with processes whose memory the driver does not report.
const UNMEASURED: &str = "unmeasured.json";

/// A file and what it contains: a list of UUIDs.
#[derive(Debug)]
pub struct GpuListReport {
    path: PathBuf,
    written: Option<BTreeSet<String>>,
    log_limit: LogRateLimit,
}

impl GpuListReport {
    /// The GPUs on which compute shares are not corrected, in the agent's state directory.
    pub fn uncorrected(state: &Path) -> Self {
        Self::at(state.join(UNCORRECTED))
    }

    /// The GPUs with processes whose memory the driver does not report.
    pub fn unmeasured(state: &Path) -> Self {
        Self::at(state.join(UNMEASURED))
    }

    fn at(path: PathBuf) -> Self {
        Self {
            path,
            written: None,
            log_limit: LogRateLimit::default(),
        }
    }

    /// Writes the GPUs of a sample, unless the file has them; for those that the sample says nothing
    /// about (`unknown`), nothing changes. Blocks.
    pub fn write(&mut self, gpus: &BTreeSet<String>, unknown: &BTreeSet<String>) {
        self.log_limit.begin_sample();
        let known = self.written.iter().flatten();
        let gpus: BTreeSet<String> = known
            .filter(|gpu| unknown.contains(*gpu))
            .chain(gpus)
            .cloned()
            .collect();
        if self.written.as_ref() == Some(&gpus) {
            return;
        }
        let text = serde_json::to_vec(&gpus).map_err(io::Error::other);
        match text.and_then(|text| write_atomically(&self.path, &text)) {
            Ok(()) => self.written = Some(gpus),
            Err(error) => {
                let (error, path) = (error.to_string(), self.path.display().to_string());
                if self.log_limit.should_log(&path, &error) {
                    tracing::warn!(
                        path,
                        error,
                        "cannot write a list of GPUs for the agent; retrying at the next sample"
                    );
                }
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
        let state = dir.path().join("state");
        let mut report = GpuListReport::uncorrected(&state);
        let (none, gpus) = (BTreeSet::new(), BTreeSet::from(["GPU-a".to_owned()]));
        report.write(&gpus, &none);
        fs::create_dir(&state).expect("made");
        let file = state.join(UNCORRECTED);
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
