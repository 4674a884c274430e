//! Writes files so that neither a reader nor a crash sees half of one. A file that a container has
//! mounted is never renamed or truncated.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use thiserror::Error;

/// The modes of files and of programs.
const FILE: u32 = 0o644;
const PROGRAM: u32 = 0o755;

#[derive(Debug, Error)]
#[error("cannot {step} {}: {source}", .path.display())]
pub struct FileError {
    /// The operation: "write", "read", "remove", …
    step: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// Builds the error of a step, for `map_err`.
pub(crate) fn failed<'a>(
    step: &'static str,
    path: &'a Path,
) -> impl FnOnce(io::Error) -> FileError + 'a {
    move |source| FileError {
        step,
        path: path.to_owned(),
        source,
    }
}

/// Device, inode, length and change time of a file: another one, or other content, has another
/// identity.
pub(crate) type Identity = (u64, u64, u64, i64, i64);

pub(crate) fn identity(path: &Path) -> io::Result<Identity> {
    let found = fs::metadata(path)?;
    let changed = (found.mtime(), found.mtime_nsec());
    Ok((found.dev(), found.ino(), found.len(), changed.0, changed.1))
}

/// Puts `content` at `path` by rename, durable on return. The temporary file is
/// in the same directory (CDI libraries before 1.1.1 miss a rename from
/// elsewhere) and does not end in `.json`. Unchanged content is not written.
/// Returns whether it wrote.
pub fn replace(path: &Path, content: &[u8]) -> Result<bool, FileError> {
    written(path, content, FILE, true)
}

/// The same for a program, which can be run as soon as it has its name.
pub fn replace_program(path: &Path, content: &[u8]) -> Result<bool, FileError> {
    written(path, content, PROGRAM, true)
}

/// The same without waiting for the disk: for files that are written again at the next start of
/// their container. Readers see the old or the new content; after a power cut the file may be
/// empty.
pub fn put(path: &Path, content: &[u8]) -> Result<bool, FileError> {
    written(path, content, FILE, false)
}

fn written(path: &Path, content: &[u8], mode: u32, durable: bool) -> Result<bool, FileError> {
    if fs::read(path).is_ok_and(|old| old == content) {
        return Ok(false);
    }
    let directory = path.parent().unwrap_or_else(|| Path::new("."));
    let temporary = path.with_extension("tmp");
    let mut file = File::create(&temporary).map_err(failed("create", &temporary))?;
    file.set_permissions(fs::Permissions::from_mode(mode))
        .map_err(failed("chmod", &temporary))?;
    file.write_all(content)
        .and_then(|()| if durable { file.sync_all() } else { Ok(()) })
        .map_err(failed("write", &temporary))?;
    fs::rename(&temporary, path).map_err(failed("rename to", path))?;
    if durable {
        File::open(directory)
            .and_then(|directory| directory.sync_all())
            .map_err(failed("sync", directory))?;
    }
    Ok(true)
}

/// Creates the directory with this mode, and its parents.
pub fn directory(path: &Path, mode: u32) -> Result<(), FileError> {
    fs::create_dir_all(path).map_err(failed("create", path))?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(failed("chmod", path))
}

/// The content of a file; `None` if it does not exist.
pub fn read(path: &Path) -> Result<Option<Vec<u8>>, FileError> {
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        content => content.map(Some).map_err(failed("read", path)),
    }
}

/// Removes a file or a whole directory; a missing one is no error.
pub fn remove(path: &Path) -> Result<(), FileError> {
    let result = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.map_err(failed("remove", path)),
    }
}

/// The names of a directory's entries, sorted; none when it does not exist.
pub fn names(path: &Path) -> Result<Vec<String>, FileError> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed("list", path))?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed("list", path))?;
        names.extend(entry.file_name().into_string());
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
#[path = "files_tests.rs"]
mod tests;
