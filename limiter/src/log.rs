//! Log lines on stderr: none, unless something is wrong or `LIBCUDA_LOG_LEVEL` asks for them.
//!
//! Levels as in HAMi: 0 and 1 errors, 2 warnings (the default), 3 one line at start and exit, 4
//! every refusal. Logging allocates nothing, does not use stdout and does not buffer.

use core::fmt::Write as _;
use core::sync::atomic::{AtomicI32, Ordering};

/// Something is permanently wrong.
pub(crate) const ERROR: i32 = 1;
/// One line at start and exit.
pub(crate) const INFO: i32 = 3;
/// Every refusal.
pub(crate) const DEBUG: i32 = 4;

const DEFAULT: i32 = 2;
const UNREAD: i32 = -1;

static LEVEL: AtomicI32 = AtomicI32::new(UNREAD);

pub(crate) fn is_enabled(level: i32) -> bool {
    let mut enabled = LEVEL.load(Ordering::Relaxed);
    if enabled == UNREAD {
        // SAFETY: the name is a C string. The result is read at once.
        let text = unsafe { libc::getenv(c"LIBCUDA_LOG_LEVEL".as_ptr()) };
        enabled = if text.is_null() {
            DEFAULT
        } else {
            // SAFETY: a C string of the environment.
            unsafe { libc::atoi(text) }.max(0)
        };
        LEVEL.store(enabled, Ordering::Relaxed);
    }
    level <= enabled.max(ERROR)
}

pub(crate) fn line(level: i32, message: core::fmt::Arguments) {
    if !is_enabled(level) {
        return;
    }
    let mut text = LogLine {
        bytes: [0; 256],
        length: 0,
    };
    // A line that is too long is truncated.
    let _ = write!(text, "aliquot[{}]: {message}", std::process::id());
    let end = text.length.min(text.bytes.len() - 1);
    text.bytes[end] = b'\n';
    // SAFETY: the bytes are valid; an error of stderr cannot be reported.
    unsafe { libc::write(libc::STDERR_FILENO, text.bytes.as_ptr().cast(), end + 1) };
}

struct LogLine {
    bytes: [u8; 256],
    length: usize,
}

impl core::fmt::Write for LogLine {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        let rest = &mut self.bytes[self.length..];
        let fits = text.len().min(rest.len());
        rest[..fits].copy_from_slice(&text.as_bytes()[..fits]);
        self.length += fits;
        Ok(())
    }
}
