//! Pods whose eviction the monitor asks for: a process of theirs is on a card that they have no
//! share of, or avoids the library, and the administrator wants such pods gone.
//!
//! Fed by: the file that the monitor writes. Must not: evict; the scheduler does; believe a monitor
//! that is not there any more.

use std::io;
use std::path::Path;
use std::time::Duration;

use aliquot_core::PodUid;
use aliquot_core::inventory::Refused;

/// A file that was not written for so long asks for nothing: its monitor, which would write it
/// again, is switched off or cannot start.
const FORGOTTEN: Duration = Duration::from_mins(1);

/// Those of them that are on this node; a file that cannot be read asks for nothing.
pub fn read(path: &Path, present: impl Fn(&PodUid) -> bool) -> Vec<Refused> {
    let written = std::fs::metadata(path).and_then(|file| file.modified());
    if written.is_ok_and(|then| then.elapsed().is_ok_and(|age| age > FORGOTTEN)) {
        return Vec::new();
    }
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => return unreadable(path, &error),
    };
    match serde_json::from_slice::<Vec<Refused>>(&text) {
        Ok(asked) => asked.into_iter().filter(|one| present(&one.pod)).collect(),
        Err(error) => unreadable(path, &error),
    }
}

fn unreadable(path: &Path, error: &dyn std::error::Error) -> Vec<Refused> {
    tracing::warn!(path = %path.display(), %error, "whom the monitor wants evicted is not known");
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evictions_outlived_a_monitor_that_was_switched_off() {
        let room = tempfile::tempdir().expect("tempdir");
        let path = room.path().join("evict.json");
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
    fn pods_that_are_here_are_asked_for_and_nothing_of_a_broken_file() {
        let room = tempfile::tempdir().expect("tempdir");
        let path = room.path().join("evict.json");
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
