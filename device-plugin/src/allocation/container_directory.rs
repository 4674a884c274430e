//! The container directory of one name: its limits page and its counters file.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use aliquot_node_state::container_directory::LIMITS;
use aliquot_region::limits;

use crate::allocation::counters_file;
use crate::files::{FileError, directory, failed, put, read};

/// Creates the container directory of one name, or updates its limits page in place: a container
/// may have it mounted. An existing counters file is left alone. Returns whether the page is new or
/// has changed.
pub fn create(path: &Path, page: &[u8; limits::SIZE]) -> Result<bool, FileError> {
    directory(path, 0o755)?;
    let mut page = *page;
    limits::set_counters(&mut page, counters_file::create(path)?);
    let limits = path.join(LIMITS);
    match read(&limits)? {
        Some(old) => update(&limits, &old, &page),
        None => put(&limits, &page),
    }
}

/// Writes the page in place, its sequence odd meanwhile; retains what the host measured. Returns
/// whether the page has changed.
fn update(path: &Path, old: &[u8], page: &[u8; limits::SIZE]) -> Result<bool, FileError> {
    let known = <&[u8; limits::SIZE]>::try_from(old).ok();
    // Odd: a writer died halfway, and readers would wait for it forever.
    if known
        .is_some_and(|old| old[limits::SEQUENCE.start] % 2 == 0 && limits::same_limits(old, page))
    {
        return Ok(false);
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
        .map_err(failed("write", path))?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    fn inode(path: &Path) -> u64 {
        fs::metadata(path).expect("exists").ino()
    }

    #[test]
    fn retains_files_and_counters_when_limits_change() {
        let dir = tempfile::tempdir().expect("tempdir");
        let container_dir = dir.path().join("n");
        let page = |fill| {
            let mut page = [0; limits::SIZE];
            page[64] = fill;
            page
        };
        assert!(create(&container_dir, &page(1)).expect("made"));
        let (limits, slots) = (
            container_dir.join("limits"),
            container_dir.join("counters/slots"),
        );
        fs::write(&slots, b"used").expect("the container writes");
        let inodes = (inode(&limits), inode(&slots));
        assert!(!create(&container_dir, &page(1)).expect("unchanged"));
        assert_eq!(fs::read(&limits).expect("read")[limits::SEQUENCE], [0; 8]);
        assert!(create(&container_dir, &page(2)).expect("changed"));
        let found = fs::read(&limits).expect("read");
        assert_eq!((found.len(), found[64]), (limits::SIZE, 2));
        assert_eq!(found[limits::SEQUENCE], 2_u64.to_le_bytes());
        assert_eq!((inode(&limits), inode(&slots)), inodes);
        assert_eq!(fs::read(&slots).expect("read"), b"used");
    }

    #[test]
    fn repairs_limits_page_after_interrupted_write() {
        let dir = tempfile::tempdir().expect("tempdir");
        let page = [0; limits::SIZE];
        create(dir.path(), &page).expect("made");
        let limits = dir.path().join("limits");
        let mut half = page;
        half[limits::SEQUENCE.start] = 5;
        fs::write(&limits, half).expect("written");
        create(dir.path(), &page).expect("repaired");
        let found = fs::read(&limits).expect("read");
        assert_eq!(found[limits::SEQUENCE], 6_u64.to_le_bytes());
    }
}
