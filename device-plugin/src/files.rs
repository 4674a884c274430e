//! Writing files so that a reader, or a crash, never sees half of one.
//!
//! Fed by: the accepted store, CDI specs, seat directories.
//! Must not: rename or truncate a file that a container has mounted.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use aliquot_region::limits;
use thiserror::Error;

use crate::tenant;

/// Why a file could not be put in place.
#[derive(Debug, Error)]
pub enum FileError {
    /// A step on `path` failed.
    #[error("cannot {step} {}: {source}", path.display())]
    Step {
        /// What was tried: "write", "read", "remove", …
        step: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Makes an error of a step, for `map_err`.
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

/// The same, durable when the system comes to it: for what is made again at the next
/// start of its container, which after a power cut is always still to come. Readers see
/// all of it or the old; after a power cut it may be there and empty.
pub fn put(path: &Path, content: &[u8]) -> Result<bool, FileError> {
    written(path, content, false)
}

/// The same through an empty file that was made ahead on the same file system, if there is one:
/// a new file may cost more than all else.
pub fn put_by(blank: Option<PathBuf>, path: &Path, content: &[u8]) -> Result<(), FileError> {
    let Some(blank) = blank else {
        return put(path, content).map(drop);
    };
    let file = OpenOptions::new().write(true).open(&blank);
    file.and_then(|mut file| file.write_all(content))
        .map_err(failed("write", &blank))?;
    fs::rename(&blank, path).map_err(failed("rename to", path))
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

/// Makes the directory with this mode, and its parents.
pub fn directory(path: &Path, mode: u32) -> Result<(), FileError> {
    fs::create_dir_all(path).map_err(failed("create", path))?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(failed("chmod", path))
}

/// Makes the seat directory of one name, or brings its limits page up to date in
/// place: a container may have it mounted. The counters file is left alone.
pub fn seat(path: &Path, page: &[u8; limits::SIZE]) -> Result<(), FileError> {
    directory(path, 0o755)?;
    tenant::equip(path)?;
    let limits = path.join("limits");
    match fs::read(&limits) {
        Ok(old) => update(&limits, &old, page),
        Err(error) if error.kind() == io::ErrorKind::NotFound => put(&limits, page).map(|_| ()),
        Err(error) => Err(failed("read", &limits)(error)),
    }
}

/// Writes the page of a seat that was made ahead ([`crate::spare`]): no container has it yet.
pub fn fill(seat: &Path, page: &[u8; limits::SIZE]) -> Result<(), FileError> {
    let limits = seat.join("limits");
    let file = OpenOptions::new().write(true).open(&limits);
    file.and_then(|file| file.write_all_at(page, 0))
        .map_err(failed("write", &limits))
}

/// Writes the page in place, its sequence odd meanwhile; keeps what the host measured.
fn update(path: &Path, old: &[u8], page: &[u8; limits::SIZE]) -> Result<(), FileError> {
    let known = <&[u8; limits::SIZE]>::try_from(old).ok();
    // Odd: a writer died in the middle, and readers would wait for it for ever.
    if known.is_some_and(|old| old[limits::SEQUENCE.start] % 2 == 0 && limits::same(old, page)) {
        return Ok(());
    }
    let mut next = *page;
    let mut sequence = 0;
    if let Some(old) = known {
        limits::keep_measured(old, &mut next);
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

/// Removes a file or a whole directory; one that is not there is fine.
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
