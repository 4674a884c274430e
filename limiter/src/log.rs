//! What a user reads on stderr: nothing, unless something is wrong or `LIBCUDA_LOG_LEVEL` asks.
//!
//! Levels as in HAMi: 0 and 1 errors, 2 warnings (the default), 3 one line at start and exit,
//! 4 every refusal. Fed by: all modules.
//! Must not: allocate, use stdout, or buffer.

use core::fmt::Write as _;
use core::sync::atomic::{AtomicI32, Ordering};

/// Something is wrong for good.
pub(crate) const ERROR: i32 = 1;
/// One line at start and exit.
pub(crate) const INFO: i32 = 3;
/// Every refusal.
pub(crate) const DEBUG: i32 = 4;

const DEFAULT: i32 = 2;
const UNREAD: i32 = -1;

static LEVEL: AtomicI32 = AtomicI32::new(UNREAD);

/// Whether lines of this level are wanted.
pub(crate) fn wants(level: i32) -> bool {
    let mut wanted = LEVEL.load(Ordering::Relaxed);
    if wanted == UNREAD {
        // SAFETY: the name is a C string. What it gives is read at once.
        let text = unsafe { libc::getenv(c"LIBCUDA_LOG_LEVEL".as_ptr()) };
        wanted = if text.is_null() {
            DEFAULT
        } else {
            // SAFETY: a C string of the environment.
            unsafe { libc::atoi(text) }.max(0)
        };
        LEVEL.store(wanted, Ordering::Relaxed);
    }
    level <= wanted.max(ERROR)
}

/// Writes one line.
pub(crate) fn line(level: i32, words: core::fmt::Arguments) {
    if !wants(level) {
        return;
    }
    let mut text = Line {
        bytes: [0; 256],
        length: 0,
    };
    // A line that is too long is cut.
    let _ = write!(text, "aliquot[{}]: {words}", std::process::id());
    let end = text.length.min(text.bytes.len() - 1);
    text.bytes[end] = b'\n';
    // SAFETY: the bytes are there; an error of stderr is nobody's business here.
    unsafe { libc::write(libc::STDERR_FILENO, text.bytes.as_ptr().cast(), end + 1) };
}

struct Line {
    bytes: [u8; 256],
    length: usize,
}

impl core::fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        let room = &mut self.bytes[self.length..];
        let fits = text.len().min(room.len());
        room[..fits].copy_from_slice(&text.as_bytes()[..fits]);
        self.length += fits;
        Ok(())
    }
}
