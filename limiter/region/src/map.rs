//! Files mapped into memory. The mapping hands out atomics only, because other processes change the
//! same bytes.

use core::sync::atomic::{AtomicU32, AtomicU64};
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Opens a regular file without following a link at the end of the path; closed at exec.
pub(crate) fn open(path: &CStr, flags: i32) -> io::Result<OwnedFd> {
    let flags = flags | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    // SAFETY: `path` is a C string; without O_CREAT no third argument is read.
    let file = unsafe { libc::open(path.as_ptr(), flags) };
    if file < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `file` was opened just now and belongs to nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(file) })
}

/// Reads a part of a file. One that ends before is an error.
pub(crate) fn read_at(file: &OwnedFd, at: usize, bytes: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        let left = &mut bytes[done..];
        let at = libc::off_t::try_from(at + done).map_err(io::Error::other)?;
        // SAFETY: the buffer is ours and as long as is said.
        let got =
            unsafe { libc::pread(file.as_raw_fd(), left.as_mut_ptr().cast(), left.len(), at) };
        match usize::try_from(got) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(got) => done += got,
            Err(_) => return Err(io::Error::last_os_error()),
        }
    }
    Ok(())
}

/// The system's error, if a call returned one.
pub(crate) fn checked(result: libc::c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

pub(crate) fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)
}

/// What the kernel says of an open file.
fn status(file: impl AsFd) -> io::Result<libc::stat> {
    // SAFETY: zero is a value of every field of `stat`.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open and `found` is a `stat` to write to.
    checked(unsafe { libc::fstat(file.as_fd().as_raw_fd(), &raw mut found) })?;
    Ok(found)
}

/// A number for the file system and the inode of an open file, which no copy of it has; not 0.
pub(crate) fn identity(file: impl AsFd) -> io::Result<u64> {
    let found = status(file)?;
    Ok((found.st_dev.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ found.st_ino) | 1 << 63)
}

/// Whether an open file is a regular one, and its length.
pub(crate) fn inspect(file: &OwnedFd) -> io::Result<(bool, u64)> {
    let found = status(file)?;
    let size = u64::try_from(found.st_size).unwrap_or(0);
    Ok((found.st_mode & libc::S_IFMT == libc::S_IFREG, size))
}

/// A shared mapping of the first bytes of a file. It lives until the process ends or `drop`.
#[derive(Debug)]
pub(crate) struct Map {
    base: *mut libc::c_void,
    length: usize,
    is_static: bool,
}

// SAFETY: the mapping is only reached through atomics, and belongs to this value.
unsafe impl Send for Map {}
// SAFETY: the same.
unsafe impl Sync for Map {}

impl Map {
    /// Maps `length` bytes; the file must be at least as long.
    pub(crate) fn new(file: &OwnedFd, length: usize, protection: i32) -> io::Result<Self> {
        let (is_file, size) = inspect(file)?;
        if !is_file || usize::try_from(size).is_ok_and(|size| size < length) {
            let what = format!("expected a file of at least {length} bytes, found {size}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                protection,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            base,
            length,
            is_static: false,
        })
    }

    /// Words that are in no file.
    pub(crate) fn of_static(words: &'static [AtomicU64]) -> Self {
        Self {
            base: words.as_ptr().cast_mut().cast(),
            length: size_of_val(words),
            is_static: true,
        }
    }

    /// Excludes the mapping, and the locks that live with it, from forked children. Where a sandbox
    /// refuses that, the locks live until the children end, too.
    pub(crate) fn exclude_from_fork(&self) {
        // SAFETY: the range is exactly this mapping.
        unsafe { libc::madvise(self.base, self.length, libc::MADV_DONTFORK) };
    }

    /// The word at a multiple of 8.
    #[inline]
    pub(crate) fn u64(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.length);
        // SAFETY: inside the mapping, which starts on a page and is therefore aligned; it lives as
        // long as `self`; every user accesses it by atomics.
        unsafe { &*self.base.byte_add(at).cast::<AtomicU64>() }
    }

    /// The word at a multiple of 4.
    #[inline]
    pub(crate) fn u32(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at + 4 <= self.length);
        // SAFETY: as for `u64`.
        unsafe { &*self.base.byte_add(at).cast::<AtomicU32>() }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        if !self.is_static {
            // SAFETY: this value's own mapping; no reference into it outlives `self`.
            unsafe { libc::munmap(self.base, self.length) };
        }
    }
}
