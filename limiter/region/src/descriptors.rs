//! Descriptors for a process that has none left.

use std::ffi::{c_int, c_void};
use std::os::fd::RawFd;
use std::{io, mem, ptr};

/// The most that the work may have open at once.
const NEEDED: usize = 3;
/// Words of 16 bytes on its stack.
const STACK: usize = 16 << 10;

struct Job<W, T> {
    kept: Option<RawFd>,
    work: Option<W>,
    result: Option<io::Result<T>>,
}

/// Runs `work`, which opens files; where this process has no descriptor left for them, in a child, which
/// has the one that is `kept`.
pub(crate) fn with_some<T>(kept: Option<RawFd>, work: impl Fn() -> io::Result<T>) -> io::Result<T> {
    match work() {
        Err(error) if error.raw_os_error() == Some(libc::EMFILE) => in_child(kept, work),
        done => done,
    }
}

/// Runs `work` in a child that has the memory of this process, but a table of descriptors of its own,
/// which lacks the first ones but for `kept`. This thread waits until it has ended. No signal reaches the
/// child, and none tells of its end.
fn in_child<T, W: FnOnce() -> io::Result<T>>(kept: Option<RawFd>, work: W) -> io::Result<T> {
    let mut job = Job {
        kept,
        work: Some(work),
        result: None,
    };
    let mut stack = vec![0_u128; STACK];
    // SAFETY: zero is a value of both sets, which the calls fill in.
    let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { mem::zeroed() };
    // SAFETY: the sets, the stack and the job live until the child has ended, for which `CLONE_VFORK`
    // waits; meanwhile the child alone uses them, and this thread's own storage.
    let started = unsafe {
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let child = libc::clone(
            run::<W, T>,
            stack.as_mut_ptr_range().end.cast(),
            libc::CLONE_VM | libc::CLONE_VFORK,
            (&raw mut job).cast(),
        );
        let started = match child {
            -1 => Err(io::Error::last_os_error()),
            child => Ok(libc::waitpid(child, ptr::null_mut(), libc::__WALL)),
        };
        libc::sigprocmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
        started
    };
    started?;
    let killed = || Err(io::Error::other("the child was killed"));
    job.result.unwrap_or_else(killed)
}

extern "C" fn run<W: FnOnce() -> io::Result<T>, T>(job: *mut c_void) -> c_int {
    // SAFETY: the job of the thread that waits.
    let job = unsafe { &mut *job.cast::<Job<W, T>>() };
    for descriptor in (0..).filter(|one| Some(*one) != job.kept).take(NEEDED) {
        // SAFETY: in a table that only this child has.
        unsafe { libc::close(descriptor) };
    }
    job.result = job.work.take().map(|work| work());
    0
}
