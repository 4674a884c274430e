//! The state file: one machine model that many processes read and write at once.
//!
//! The file holds a header and two copies ("slots") of the model. Generation g lives in slot
//! g mod 2. A writer holds the file lock, copies the live slot, changes the copy, stores it in
//! the other slot and only then publishes generation g + 1, so readers need no lock, and a
//! writer killed half-way leaves the live slot whole. A reader copies the live slot and keeps
//! the copy if the generation has not moved meanwhile (its slot is first reused for g + 2).
//! The generation is also a futex: whoever waits for events sleeps on it.

use std::fs::{File, Permissions};
use std::io::{self, ErrorKind, Write as _};
use std::mem::{offset_of, size_of};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

use bytemuck::{Pod, Zeroable};
use memmap2::{Mmap, MmapMut};
use rustix::thread::futex;

use crate::device_nodes::{self, Listing};
use crate::model::{Gpu, MAX_GPUS, Machine};
use crate::shared;

const MAGIC: [u8; 8] = *b"ALQGPUSM";
const WORD: usize = size_of::<u64>();
const SLOT_WORDS: usize = size_of::<Machine>() / WORD;
const HEADER_WORDS: usize = size_of::<Header>() / WORD;
const FILE_SIZE: usize = size_of::<Header>() + 2 * size_of::<Machine>();

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Header {
    magic: [u8; 8],
    generation: u32,
    reserved: u32,
}

/// A state file open for reading.
pub struct State {
    map: Mmap,
}

impl State {
    /// Opens and checks a state file.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = shared::open(path, false)?;
        check_header(path, &file)?;
        // SAFETY: state files are never truncated (they are replaced by rename), and every access
        // to the mapping goes through atomics.
        let map = unsafe { Mmap::map(&file) }.map_err(io::Error::other)?;
        Ok(Self { map })
    }

    /// A consistent copy of the whole machine.
    #[must_use]
    pub fn machine(&self) -> Box<Machine> {
        self.snapshot(0)
    }

    /// A consistent copy of one GPU, existing or not.
    #[must_use]
    pub fn gpu(&self, index: usize) -> Box<Gpu> {
        assert!(index < MAX_GPUS, "a machine has at most {MAX_GPUS} GPUs");
        self.snapshot(offset_of!(Machine, gpus) + index * size_of::<Gpu>())
    }

    /// Counts the changes; wraps.
    #[must_use]
    pub fn generation(&self) -> u32 {
        generation(&self.map).load(Ordering::Acquire)
    }

    /// Sleeps until the generation is no longer `seen` or the time is over. May wake early.
    pub fn wait_change(&self, seen: u32, timeout: Duration) {
        let timeout = futex::Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        // Any error (changed already, interrupted, timed out) just ends the sleep early:
        // callers check the state and the clock themselves.
        let _ = futex::wait(
            generation(&self.map),
            futex::Flags::empty(),
            seen,
            Some(&timeout),
        );
    }

    #[expect(
        clippy::unnecessary_box_returns,
        reason = "too large for a caller's stack"
    )]
    fn snapshot<T: Pod>(&self, offset: usize) -> Box<T> {
        let words = words(&self.map);
        let mut copy: Box<T> = bytemuck::allocation::zeroed_box();
        loop {
            let before = self.generation();
            let start = slot(before) + offset / WORD;
            let target: &mut [u64] = bytemuck::cast_slice_mut(std::slice::from_mut(&mut *copy));
            for (to, from) in target.iter_mut().zip(&words[start..]) {
                *to = from.load(Ordering::Relaxed);
            }
            fence(Ordering::Acquire);
            if generation(&self.map).load(Ordering::Relaxed) == before {
                return copy;
            }
        }
    }
}

/// Creates a state file atomically, and what belongs to it: the empty file of usage counters
/// (`shared`) and the driver's files of `/proc` (`device_nodes`). Processes that have an older file
/// of this name open see the old machine until they initialise NVML again.
pub fn create(path: &Path, machine: &Machine) -> io::Result<()> {
    shared::create(path)?;
    let header = Header {
        magic: MAGIC,
        ..Header::zeroed()
    };
    Listing::of(machine).create(path)?;
    let contents = [bytemuck::bytes_of(&header), bytemuck::bytes_of(machine)];
    replace(path, &contents, (FILE_SIZE, 0o644))
}

/// Creates a file of this length and mode, written beside and then renamed.
pub(crate) fn replace(
    path: &Path,
    contents: &[&[u8]],
    (length, mode): (usize, u32),
) -> io::Result<()> {
    let folder = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    for part in contents {
        file.write_all(part)?;
    }
    file.as_file().set_len(length as u64)?;
    let mode = Permissions::from_mode(mode);
    file.as_file().set_permissions(mode)?;
    file.persist(path)?;
    Ok(())
}

/// Changes the machine under the writers' lock. When `change` refuses, nothing is published. Errors
/// after the opening are of [`ErrorKind::Other`].
pub fn update<T, E: From<io::Error>>(
    path: &Path,
    change: impl FnOnce(&mut Machine) -> Result<T, E>,
) -> Result<T, E> {
    // Opened for every change: a file lock belongs to the open file, so threads and forked
    // children would share the lock of an open file.
    let file = shared::open(path, true)?;
    check_header(path, &file)?;
    file.lock().map_err(io::Error::other)?;
    // SAFETY: as in `State::open`.
    let map = unsafe { MmapMut::map_mut(&file) }.map_err(io::Error::other)?;
    let (words, counter) = (words(&map), generation(&map));

    let current = counter.load(Ordering::Acquire);
    let mut machine: Box<Machine> = bytemuck::allocation::zeroed_box();
    let copy: &mut [u64] = bytemuck::cast_slice_mut(std::slice::from_mut(&mut *machine));
    for (to, from) in copy.iter_mut().zip(&words[slot(current)..]) {
        *to = from.load(Ordering::Relaxed);
    }
    let before = Listing::of(&machine);
    let answer = change(&mut machine)?;
    let listing = Listing::of(&machine);
    if listing != before {
        listing
            .write(path, &before)
            .and_then(|()| device_nodes::create_capability_nodes(&machine, &listing, &before))
            .map_err(io::Error::other)?;
    }

    let next = current.wrapping_add(1);
    fence(Ordering::Release);
    let changed: &[u64] = bytemuck::cast_slice(std::slice::from_ref(&*machine));
    for (from, to) in changed.iter().zip(&words[slot(next)..]) {
        to.store(*from, Ordering::Relaxed);
    }
    counter.store(next, Ordering::Release);
    // It may wake no waiter, and cannot fail otherwise on a mapped word.
    let _ = futex::wake(counter, futex::Flags::empty(), i32::MAX.unsigned_abs());
    Ok(answer)
}

fn check_header(path: &Path, file: &File) -> io::Result<()> {
    let mut magic = [0; MAGIC.len()];
    file.read_exact_at(&mut magic, 0)?;
    if magic != MAGIC || file.metadata()?.len() != FILE_SIZE as u64 {
        return Err(no_state(path));
    }
    Ok(())
}

/// The error of a file that is none of this simulator's.
pub(crate) fn no_state(path: &Path) -> io::Error {
    let error = format!("{} is not a gpusim state file", path.display());
    io::Error::new(ErrorKind::InvalidData, error)
}

fn slot(generation: u32) -> usize {
    HEADER_WORDS
        + if generation.is_multiple_of(2) {
            0
        } else {
            SLOT_WORDS
        }
}

#[expect(clippy::cast_ptr_alignment, reason = "a mapping starts on a page")]
fn words(map: &[u8]) -> &[AtomicU64] {
    assert_eq!(map.len(), FILE_SIZE, "the header check compared the length");
    // SAFETY: the mapping starts on a page, so it is aligned for u64; it is FILE_SIZE long, which
    // is a whole number of words; it lives as long as `map`; all sharers use atomics on it.
    unsafe { std::slice::from_raw_parts(map.as_ptr().cast::<AtomicU64>(), FILE_SIZE / WORD) }
}

#[expect(
    clippy::cast_ptr_alignment,
    reason = "the field's offset is a multiple of 4"
)]
fn generation(map: &[u8]) -> &AtomicU32 {
    assert!(map.len() >= size_of::<Header>());
    // SAFETY: the header is inside the mapping and the field aligned for u32; it lives as long
    // as `map`; all sharers use atomics of this size on it.
    unsafe {
        &*map
            .as_ptr()
            .add(offset_of!(Header, generation))
            .cast::<AtomicU32>()
    }
}
