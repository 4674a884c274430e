//! Files that the command line names.

use std::io::Read as _;
use std::path::Path;

use thiserror::Error;

#[derive(Debug, Error)]
#[error("cannot read {path}: {source}")]
pub struct InputError {
    path: String,
    source: std::io::Error,
}

/// The text of a file; `-` is standard input.
pub(crate) fn text(path: &Path) -> Result<String, InputError> {
    let read = if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(path)
    };
    read.map_err(|source| InputError {
        path: path.display().to_string(),
        source,
    })
}
