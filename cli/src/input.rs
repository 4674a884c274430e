//! Files that the command line names.

use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, Result};

/// The text of a file; `-` is standard input.
pub(crate) fn text(path: &Path) -> Result<String> {
    let read = if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(path)
    };
    read.with_context(|| format!("cannot read {}", path.display()))
}
