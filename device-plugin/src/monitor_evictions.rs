//! Pods whose eviction the monitor requests in a file: they use a device outside their allocation,
//! or bypass the limiter, and the administrator wants such pods evicted. The scheduler evicts them.

use std::io;
use std::path::Path;
use std::time::Duration;

use aliquot_core::PodUid;
use aliquot_core::inventory::RefusedPod;

/// A file that was not written for so long is ignored: its monitor, which rewrites it at an
/// interval, is switched off or cannot start.
const FORGOTTEN: Duration = Duration::from_mins(1);

/// The requested evictions of pods on this node; an unreadable file requests none.
pub fn read(path: &Path, present: impl Fn(&PodUid) -> bool) -> Vec<RefusedPod> {
    let written = std::fs::metadata(path).and_then(|file| file.modified());
    if written.is_ok_and(|then| then.elapsed().is_ok_and(|age| age > FORGOTTEN)) {
        return Vec::new();
    }
    let text = match std::fs::read(path) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_evictions_of_a_stopped_monitor() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("evict.json");
        let one = r#"[{"pod":"u1","namespace":"d","name":"p","reason":"r"}]"#;
        std::fs::write(&path, one).expect("written");
        let found = || read(&path, |_| true).len();
        assert_eq!(found(), 1);
        let file = std::fs::File::options().append(true).open(&path);
        let long_ago = std::time::SystemTime::now() - FORGOTTEN * 2;
        file.and_then(|file| file.set_modified(long_ago))
            .expect("set");
        assert_eq!(found(), 0);
    }

    #[test]
    fn reads_only_pods_of_this_node() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("evict.json");
        let found = || {
            let all = read(&path, |uid| uid.as_str() != "gone");
            all.iter().map(|one| one.name.clone()).collect::<Vec<_>>()
        };
        assert!(found().is_empty());
        let one =
            |uid: &str| format!(r#"{{"pod":"{uid}","namespace":"d","name":"{uid}","reason":"r"}}"#);
        std::fs::write(&path, format!("[{},{}]", one("u1"), one("gone"))).expect("written");
        assert_eq!(found(), ["u1"]);
        std::fs::write(&path, "[{").expect("written");
        assert!(found().is_empty());
    }
}
