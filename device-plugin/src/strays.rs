//! Pods whose eviction the monitor asks for: a process of theirs is on a card that they have no
//! share of, or avoids the library, and the administrator wants such pods gone.
//!
//! Fed by: the file that the monitor writes. Must not: evict; the scheduler does.

use std::io;
use std::path::Path;

use aliquot_core::PodUid;
use aliquot_core::inventory::Refused;

/// Those of them that are on this node; a file that cannot be read asks for nothing.
pub fn read(path: &Path, present: impl Fn(&PodUid) -> bool) -> Vec<Refused> {
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
