//! `control.log` and `server.log`: one line for each event, in the real daemon's words.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Appends a line; a failed write is ignored.
pub(super) fn write(folder: &Path, file: &str, who: &str, text: &str) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let since = since.unwrap_or_default();
    let line = format!(
        "[{}.{:03} {who} {}] {text}\n",
        since.as_secs(),
        since.subsec_millis(),
        std::process::id()
    );
    let opened = OpenOptions::new()
        .create(true)
        .append(true)
        .open(folder.join(file));
    if let Ok(mut file) = opened {
        let _ = file.write_all(line.as_bytes());
    }
}
