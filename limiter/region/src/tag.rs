//! Tags of descriptors: a read lock on a random byte of the open file. It is the same for each copy
//! of the descriptor in any process, `/proc/self/fdinfo` shows it, and it ends with the last copy. Files
//! of a device's node all have the same inode, so another file of it tells whether a tag still exists.

use core::hash::{BuildHasher as _, Hasher as _};
use std::collections::hash_map::RandomState;
use std::fs::{self, File};
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::path::Path;
use std::time::Instant;

use crate::descriptors;
use crate::lock::{self, LockMode};
use crate::map;

/// Tags are from here on; nobody else locks bytes at such offsets.
const FIRST: u64 = 1 << 61;
/// Keys from here on belong to memory without descriptors.
const AFTER_LAST: u64 = 1 << 62;

pub fn new() -> u64 {
    let mut hasher = RandomState::new().build_hasher();
    // A forked child would otherwise continue its parent's sequence.
    hasher.write_u32(std::process::id());
    hasher.write(format!("{:?}", Instant::now()).as_bytes());
    FIRST | (hasher.finish() & (FIRST - 1))
}

/// The key of memory that processes know by these words: the same in each of them.
pub fn of_words(words: [u64; 8]) -> u64 {
    let mixed = words.into_iter().fold(1_u64, |key, word| {
        let key = (key ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        key ^ (key >> 29)
    });
    AFTER_LAST | mixed
}

/// Tags a descriptor of the node at `node`; its inode. `None` if it is of another file, or the kernel
/// refuses the lock: then nothing tells what the descriptor stands for.
pub(crate) fn attach(descriptor: RawFd, tag: u64, node: &Path) -> Option<u64> {
    // SAFETY: the caller has just got the descriptor, and keeps it open during this call.
    let file = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let inode = map::identity(file).ok()?;
    let inode_of = || DeviceNode::open(node).map(|node| node.inode);
    let is_node = descriptors::with_some(None, inode_of).is_ok_and(|of_node| of_node == inode);
    let is_taken = is_node && lock::set(file, offset(tag), LockMode::Shared).ok()?;
    is_taken.then_some(inode)
}

/// The tag of a descriptor of this process.
pub fn read(descriptor: RawFd) -> Option<u64> {
    let path = format!("/proc/self/fdinfo/{descriptor}");
    let text = descriptors::with_some(Some(descriptor), || fs::read_to_string(&path)).ok()?;
    tag_in(&text)
}

/// The tag in the kernel's description of a descriptor.
fn tag_in(text: &str) -> Option<u64> {
    let locks = text.lines().filter_map(|line| line.strip_prefix("lock:"));
    let mut tags = locks.filter_map(|lock| {
        let words: Vec<&str> = lock.split_whitespace().collect();
        let [_, "OFDLCK", _, "READ", _, _, from, to] = words[..] else {
            return None;
        };
        from.parse().ok().filter(|_| from == to)
    });
    tags.find(|tag| (FIRST..AFTER_LAST).contains(tag))
}

/// A device's node, to check for tags on its other files.
#[derive(Debug)]
pub(crate) struct DeviceNode {
    file: File,
    inode: u64,
}

impl DeviceNode {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = map::open(path, libc::O_RDWR | libc::O_NONBLOCK | libc::O_NOCTTY)?;
        let inode = map::identity(&file)?;
        Ok(Self { file, inode })
    }

    /// Whether no open file of the inode has a tag. False if that cannot be known.
    pub(crate) fn lacks(&self, tag: u64, inode: u64) -> bool {
        let at = offset(tag);
        let found = || lock::locked_range(&self.file, at, at + 1);
        self.inode == inode && matches!(found(), Ok(None))
    }
}

fn offset(tag: u64) -> usize {
    usize::try_from(tag).unwrap_or(usize::MAX >> 1)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use super::*;

    #[test]
    fn tag_lives_as_long_as_a_copy_of_its_descriptor() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("node");
        File::create(&path).unwrap();
        let open = || File::options().read(true).write(true).open(&path).unwrap();
        let (one, other) = (open(), open());
        let (tag, second) = (new(), new());
        assert_ne!(tag, second);
        let inode = attach(one.as_raw_fd(), tag, &path).unwrap();
        assert_eq!(attach(other.as_raw_fd(), tag, &path), Some(inode));
        let copy = one.try_clone().unwrap();
        assert_eq!(read(copy.as_raw_fd()), Some(tag));
        assert_eq!(read(open().as_raw_fd()), None);
        let node = DeviceNode::open(&path).unwrap();
        assert!(node.lacks(second, inode) && !node.lacks(second, inode ^ 2));
        drop((one, other));
        assert!(!node.lacks(tag, inode), "a copy is open");
        drop(copy);
        // A child that another test forks has the descriptors until it executes its program.
        let deadline = Instant::now() + std::time::Duration::from_secs(30);
        while !node.lacks(tag, inode) {
            assert!(Instant::now() < deadline, "the tag stays");
            std::thread::yield_now();
        }
        let foreign = tempfile::tempfile().unwrap();
        assert_eq!(attach(foreign.as_raw_fd(), tag, &path), None);
    }

    #[test]
    fn finds_tag_among_other_locks() {
        let tag = FIRST + 7;
        let line = |kind: &str, how: &str, from: u64, to: u64| {
            format!("lock:\t1: {kind}  ADVISORY  {how} -1 00:06:1234 {from} {to}\n")
        };
        let others = "pos:\t0\nflags:\t02\n".to_owned()
            + &line("OFDLCK", "READ", 5, 5)
            + &line("OFDLCK", "READ", tag, tag + 9)
            + &line("OFDLCK", "WRITE", tag, tag)
            + &line("POSIX", "READ", tag, tag)
            + "lock:\t1: OFDLCK\nlock: x\n";
        assert_eq!(tag_in(&others), None);
        assert_eq!(
            tag_in(&(others + &line("OFDLCK", "READ", tag, tag))),
            Some(tag)
        );
        assert!((FIRST..AFTER_LAST).contains(&new()) && of_words([7; 8]) >= AFTER_LAST);
        assert_ne!(of_words([7; 8]), of_words([8; 8]));
    }
}
