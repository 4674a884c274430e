//! Log lines on stderr: none, unless something is wrong or `LIBCUDA_LOG_LEVEL` asks for them.
//!
//! Levels as in HAMi: 0 and 1 errors, 2 warnings (the default), 3 one line at start and exit, 4
//! every refusal. Logging allocates nothing, does not use stdout and does not buffer.

use core::sync::atomic::{AtomicI32, Ordering};
use std::io::Write as _;

pub(crate) const ERROR: i32 = 1;
pub(crate) const INFO: i32 = 3;
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
    let mut text = [0_u8; 256];
    let longest = text.len() - 1;
    // A line that is too long is truncated.
    let mut rest = &mut text[..longest];
    let _ = write!(rest, "aliquot[{}]: {message}", std::process::id());
    let end = longest - rest.len();
    text[end] = b'\n';
    // SAFETY: the bytes are valid; an error of stderr cannot be reported.
    unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), end + 1) };
}
