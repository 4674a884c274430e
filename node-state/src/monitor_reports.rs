//! Files in which the monitor reports to the agent: evictions that it requests, and GPUs of which
//! the driver does not report everything.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use aliquot_core::PodUid;
use aliquot_core::inventory::RefusedPod;
use serde::Serialize;

use crate::state::StateDirectory;

/// Requests of evictions that were not written for so long are ignored: their monitor, which renews
/// them, is switched off or cannot start.
const EVICTIONS_VALID: Duration = Duration::from_mins(1);
/// The monitor renews its requests after this.
pub const EVICTION_RENEWAL: Duration = Duration::from_secs(20);

/// The evictions that the monitor requests of pods that are `present`, because they use a device
/// outside their allocation, or bypass the limiter, and the administrator wants such pods evicted.
/// The scheduler evicts them. An unreadable file requests none.
pub fn evictions(path: &Path, present: impl Fn(&PodUid) -> bool) -> Vec<RefusedPod> {
    let written = fs::metadata(path).and_then(|file| file.modified());
    if written.is_ok_and(|then| then.elapsed().is_ok_and(|age| age > EVICTIONS_VALID)) {
        return Vec::new();
    }
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => return unreadable(path, &error),
    };
    match serde_json::from_slice::<Vec<RefusedPod>>(&text) {
        Ok(asked) => asked.into_iter().filter(|one| present(&one.pod)).collect(),
        Err(error) => unreadable(path, &error),
    }
}

fn unreadable(path: &Path, error: &dyn std::error::Error) -> Vec<RefusedPod> {
    tracing::warn!(path = %path.display(), %error, "cannot read the evictions that the monitor requests");
    Vec::new()
}

/// The UUIDs in a list of GPUs; `None`: there is none, or it cannot be read.
pub fn gpus(path: &Path) -> Option<BTreeSet<String>> {
    let problem = match fs::read(path) {
        Ok(text) => match serde_json::from_slice(&text) {
            Ok(gpus) => return Some(gpus),
            Err(error) => error.to_string(),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => error.to_string(),
    };
    tracing::warn!(path = %path.display(), problem, "cannot read a list of GPUs that the monitor writes");
    None
}

/// Writes a report below the agent's state directory. A reader sees the old or the new one. Fails once the
/// agent has removed its accepted allocations: it is leaving the node, and nothing may stay there.
pub fn write(path: &Path, report: &impl Serialize) -> io::Result<()> {
    let accepted = StateDirectory(path.parent().unwrap_or(path)).accepted();
    if !accepted.is_dir() {
        let text = format!("no directory {}", accepted.display());
        return Err(io::Error::new(io::ErrorKind::NotFound, text));
    }
    let text = serde_json::to_vec(report).map_err(io::Error::other)?;
    write_atomically(path, &text)
}

/// Writes a file by rename.
pub fn write_atomically(path: &Path, content: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, content)?;
    fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_only_recent_evictions_of_pods_of_this_node() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("evict.json");
        let found = || {
            let all = evictions(&path, |uid| uid.as_str() != "gone");
            all.iter().map(|one| one.name.clone()).collect::<Vec<_>>()
        };
        assert!(found().is_empty());
        let one =
            |uid: &str| format!(r#"{{"pod":"{uid}","namespace":"d","name":"{uid}","reason":"r"}}"#);
        fs::write(&path, format!("[{},{}]", one("u1"), one("gone"))).expect("written");
        assert_eq!(found(), ["u1"]);
        // The monitor stopped.
        let file = fs::File::options()
            .append(true)
            .open(&path)
            .expect("opened");
        let long_ago = std::time::SystemTime::now() - EVICTIONS_VALID * 2;
        file.set_modified(long_ago).expect("set");
        assert!(found().is_empty());
        fs::write(&path, "[{").expect("written");
        assert!(found().is_empty());
    }

    #[test]
    fn writes_evictions_that_agent_reads() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("evict.json");
        write(&path, &["too early or too late"]).expect_err("no agent");
        assert!(!path.exists());
        fs::create_dir(dir.path().join("accepted")).expect("created");
        let refused = RefusedPod {
            pod: "u1".into(),
            namespace: "d".to_owned(),
            name: "p".to_owned(),
            reason: "r".to_owned(),
        };
        write(&path, &[&refused]).expect("written");
        let expected = r#"[{"pod":"u1","namespace":"d","name":"p","reason":"r"}]"#;
        assert_eq!(fs::read_to_string(&path).expect("read"), expected);
        assert_eq!(evictions(&path, |_| true), [refused]);
    }

    #[test]
    fn reads_list_of_uncorrected_gpus() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("uncorrected.json");
        assert_eq!(gpus(&path), None);
        fs::write(&path, r#"["GPU-a"]"#).expect("written");
        assert_eq!(gpus(&path), Some(["GPU-a".to_owned()].into()));
        fs::write(&path, "[").expect("written");
        assert_eq!(gpus(&path), None);
    }
}
