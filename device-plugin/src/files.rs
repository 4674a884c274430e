//! Writes files so that neither a reader nor a crash sees half of one. A file that a container has
//! mounted is never renamed or truncated.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use aliquot_region::limits;
use thiserror::Error;

use crate::counters_file;

/// Why a file operation failed.
#[derive(Debug, Error)]
pub enum FileError {
    /// A step on `path` failed.
    #[error("cannot {step} {}: {source}", path.display())]
    Step {
        /// The operation: "write", "read", "remove", …
        step: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// Builds the error of a step, for `map_err`.
pub(crate) fn failed<'a>(
    step: &'static str,
    path: &'a Path,
) -> impl FnOnce(io::Error) -> FileError + 'a {
    move |source| FileError::Step {
        step,
        path: path.to_owned(),
        source,
    }
}

/// Puts `content` at `path` by rename, durable on return. The temporary file is
/// in the same directory (CDI libraries before 1.1.1 miss a rename from
/// elsewhere) and does not end in `.json`. Unchanged content is not written.
/// Returns whether it wrote.
pub fn replace(path: &Path, content: &[u8]) -> Result<bool, FileError> {
    written(path, content, true)
}

/// The same without waiting for the disk: for files that are written again at the next start of
/// their container. Readers see the old or the new content; after a power cut the file may be
/// empty.
pub fn put(path: &Path, content: &[u8]) -> Result<bool, FileError> {
    written(path, content, false)
}

/// The same through a preallocated empty file on the same file system, if there is one: creating a
/// file may cost more than everything else.
pub fn put_reusing(empty: Option<PathBuf>, path: &Path, content: &[u8]) -> Result<(), FileError> {
    let Some(empty) = empty else {
        return put(path, content).map(drop);
    };
    let file = OpenOptions::new().write(true).open(&empty);
    file.and_then(|mut file| file.write_all(content))
        .map_err(failed("write", &empty))?;
    fs::rename(&empty, path).map_err(failed("rename to", path))
}

fn written(path: &Path, content: &[u8], durable: bool) -> Result<bool, FileError> {
    if fs::read(path).is_ok_and(|old| old == content) {
        return Ok(false);
    }
    let directory = path.parent().unwrap_or_else(|| Path::new("."));
    let temporary = path.with_extension("tmp");
    let mut file = File::create(&temporary).map_err(failed("create", &temporary))?;
    file.set_permissions(fs::Permissions::from_mode(0o644))
        .map_err(failed("chmod", &temporary))?;
    let sync = |file: &File| if durable { file.sync_all() } else { Ok(()) };
    file.write_all(content)
        .and_then(|()| sync(&file))
        .map_err(failed("write", &temporary))?;
    fs::rename(&temporary, path).map_err(failed("rename to", path))?;
    if durable {
        File::open(directory)
            .and_then(|directory| sync(&directory))
            .map_err(failed("sync", directory))?;
    }
    Ok(true)
}

/// Creates the directory with this mode, and its parents.
pub fn directory(path: &Path, mode: u32) -> Result<(), FileError> {
    fs::create_dir_all(path).map_err(failed("create", path))?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(failed("chmod", path))
}

/// Creates the container directory of one name, or updates its limits page in place: a container
/// may have it mounted. An existing counters file is left alone.
pub fn container_directory(path: &Path, page: &[u8; limits::SIZE]) -> Result<(), FileError> {
    directory(path, 0o755)?;
    counters_file::create(path)?;
    let limits = path.join("limits");
    match fs::read(&limits) {
        Ok(old) => update(&limits, &old, page),
        Err(error) if error.kind() == io::ErrorKind::NotFound => put(&limits, page).map(|_| ()),
        Err(error) => Err(failed("read", &limits)(error)),
    }
}

/// Writes the limits page of a preallocated directory ([`crate::preallocated`]), which no container
/// uses yet.
pub fn write_limits(directory: &Path, page: &[u8; limits::SIZE]) -> Result<(), FileError> {
    let limits = directory.join("limits");
    let file = OpenOptions::new().write(true).open(&limits);
    file.and_then(|file| file.write_all_at(page, 0))
        .map_err(failed("write", &limits))
}

/// Writes the page in place, its sequence odd meanwhile; retains what the host measured.
fn update(path: &Path, old: &[u8], page: &[u8; limits::SIZE]) -> Result<(), FileError> {
    let known = <&[u8; limits::SIZE]>::try_from(old).ok();
    // Odd: a writer died halfway, and readers would wait for it forever.
    if known
        .is_some_and(|old| old[limits::SEQUENCE.start] % 2 == 0 && limits::same_limits(old, page))
    {
        return Ok(());
    }
    let mut next = *page;
    let mut sequence = 0;
    if let Some(old) = known {
        limits::copy_measurements(old, &mut next);
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&old[limits::SEQUENCE]);
        sequence = u64::from_le_bytes(bytes) & !1;
    }
    let file = OpenOptions::new()
        .write(true)
        .open(path)
        .map_err(failed("open", path))?;
    let write = |sequence: u64, bytes: &mut [u8; limits::SIZE]| {
        bytes[limits::SEQUENCE].copy_from_slice(&sequence.to_le_bytes());
        file.write_all_at(&bytes[limits::SEQUENCE], limits::SEQUENCE.start as u64)?;
        if sequence % 2 == 1 {
            file.write_all_at(bytes, 0)?;
        }
        Ok(())
    };
    write(sequence.wrapping_add(1), &mut next)
        .and_then(|()| write(sequence.wrapping_add(2), &mut next))
        .map_err(failed("write", path))
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
