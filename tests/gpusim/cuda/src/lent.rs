//! Files that name physical memory: the memory is there while one of them is open anywhere, or
//! while a process that imported it uses it. Who holds it holds a lock on the file that goes with
//! the last descriptor; its maker asks through a descriptor of its own. Must not know what memory is.

use std::fs::File;
use std::io::Error;
use std::os::fd::AsRawFd as _;

/// A descriptor of one's own of such a file.
pub(crate) struct Lent(File);

fn byte(kind: i32) -> libc::flock {
    libc::flock {
        l_type: i16::try_from(kind).expect("a small constant"),
        l_whence: i16::try_from(libc::SEEK_SET).expect("a small constant"),
        l_start: 0,
        l_len: 1,
        l_pid: 0,
    }
}

/// Whoever has this descriptor, or a copy of it, holds the memory.
pub(crate) fn hold(file: &File) -> Result<(), Error> {
    let lock = byte(libc::F_RDLCK);
    // SAFETY: the descriptor is open, and the struct lives through the call.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    if done == 0 {
        Ok(())
    } else {
        Err(Error::last_os_error())
    }
}

impl Lent {
    /// Opens the same file anew.
    pub(crate) fn again(file: &File) -> Result<Self, Error> {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let own = File::options().read(true).write(true).open(path)?;
        Ok(Self(own))
    }

    /// As `again`, and holds the memory for as long as it lives.
    pub(crate) fn holding(file: &File) -> Result<Self, Error> {
        let own = Self::again(file)?;
        hold(&own.0)?;
        Ok(own)
    }

    /// Somebody else holds the memory. When the kernel cannot say, it counts as held.
    pub(crate) fn is_held(&self) -> bool {
        let mut asked = byte(libc::F_WRLCK);
        // SAFETY: the descriptor is open, and the struct lives through the call.
        let code = unsafe { libc::fcntl(self.0.as_raw_fd(), libc::F_OFD_GETLK, &raw mut asked) };
        code != 0 || i32::from(asked.l_type) != libc::F_UNLCK
    }
}
