//! Where cargo put the shared library and the command, and a folder in which loaders find the
//! library under its real name. For tests only; must not build anything.

use std::path::{Path, PathBuf};

/// The name under which NVML clients look for their library.
pub const LIBRARY_NAME: &str = "libnvidia-ml.so.1";

const BUILT_NAME: &str = "libaliquot_gpusim.so";

/// Why the library cannot be given.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// This program's own path is not known.
    #[error("cannot tell where this program lies: {0}")]
    OwnPath(std::io::Error),
    /// No library beside this program.
    #[error("{BUILT_NAME} is in none of {folders:?}; build it with: cargo build -p aliquot-gpusim")]
    NotBuilt {
        /// Where it was looked for.
        folders: Vec<PathBuf>,
    },
    /// The link cannot be made.
    #[error("cannot link {LIBRARY_NAME} in {folder}: {source}")]
    Link {
        /// Where.
        folder: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
}

/// The built shared library. Cargo writes it to `deps/` whenever this crate is compiled, also as
/// a dependency of tests, and copies it one folder up only when this crate itself was asked for;
/// so the one in `deps/` is never older.
pub fn library_path() -> Result<PathBuf, PlaceError> {
    let program = std::env::current_exe().map_err(PlaceError::OwnPath)?;
    let folders: Vec<PathBuf> = program
        .ancestors()
        .skip(1)
        .take(2)
        .flat_map(|folder| [folder.join("deps"), folder.to_owned()])
        .collect();
    let found = folders
        .iter()
        .map(|folder| folder.join(BUILT_NAME))
        .find(|file| file.is_file());
    found.ok_or(PlaceError::NotBuilt { folders })
}

/// Links the library into `folder` under its real name and returns the link; an older link of
/// that name is replaced.
pub fn link_into(folder: &Path) -> Result<PathBuf, PlaceError> {
    let target = library_path()?;
    let link = folder.join(LIBRARY_NAME);
    let make = || {
        match std::fs::remove_file(&link) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        std::os::unix::fs::symlink(&target, &link)
    };
    make().map_err(|source| PlaceError::Link {
        folder: folder.to_owned(),
        source,
    })?;
    Ok(link)
}
