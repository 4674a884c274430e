//! Streams: the two default ones of each context and those that programs make. A process's work
//! runs on a GPU in the order of launch, so a stream only knows after which number it may go on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::ThreadId;

use parking_lot::Mutex;

use crate::capture::{self, Capture, Node};
use crate::codes::ERROR_INVALID_HANDLE;
use crate::context::{ContextRef, current};
use crate::driver::driver;
use crate::ffi::Answer;
use crate::timeline::NEVER;
use crate::types::Handle;

/// `CU_STREAM_LEGACY` and `CU_STREAM_PER_THREAD`.
const LEGACY: Handle = 1;
const PER_THREAD: Handle = 2;

/// One stream.
pub(crate) struct Stream {
    pub(crate) context: ContextRef,
    pub(crate) kind: StreamKind,
    pub(crate) priority: i32,
    /// Distinguishes streams.
    pub(crate) id: u64,
    /// The number of its newest work.
    last: AtomicU64,
    pub(crate) capture: Mutex<Option<Arc<Capture>>>,
}

/// What a stream waits for besides its own work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamKind {
    /// The legacy default stream: all blocking streams, and they for it.
    Legacy,
    /// The legacy default stream only.
    Blocking,
    /// Nothing.
    Free,
}

/// A context's default streams, and how far its blocking ones are.
#[derive(Default)]
pub(crate) struct Defaults {
    streams: Mutex<Vec<(Option<ThreadId>, Arc<Stream>)>>,
    newest_blocking: AtomicU64,
    newest_legacy: AtomicU64,
}

impl Stream {
    pub(crate) fn new(context: ContextRef, kind: StreamKind, priority: i32) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            context,
            kind,
            priority,
            id: NEXT.fetch_add(1, Relaxed),
            last: AtomicU64::new(0),
            capture: Mutex::new(None),
        }
    }

    /// Waits for a word that is never written: later launches never run.
    pub(crate) fn wait_forever(&self) {
        self.last.store(NEVER, Relaxed);
    }

    /// The number of the work after which something on this stream may happen.
    pub(crate) fn behind(&self) -> u64 {
        let (own, defaults) = (self.last.load(Relaxed), &self.context.defaults);
        match self.kind {
            StreamKind::Legacy => own.max(defaults.newest_blocking.load(Relaxed)),
            StreamKind::Blocking => own.max(defaults.newest_legacy.load(Relaxed)),
            StreamKind::Free => own,
        }
    }

    /// What follows on this stream comes after the work of a number.
    pub(crate) fn follow(&self, number: u64) {
        self.last.fetch_max(number, Relaxed);
        let defaults = &self.context.defaults;
        match self.kind {
            StreamKind::Legacy => defaults.newest_legacy.fetch_max(number, Relaxed),
            StreamKind::Blocking => defaults.newest_blocking.fetch_max(number, Relaxed),
            StreamKind::Free => 0,
        };
    }

    /// Runs work of so many nanoseconds, or notes it in the graph that is captured.
    pub(crate) fn run(&self, node: impl FnOnce() -> Node, work: impl FnOnce() -> u64) -> Answer {
        if capture::any() {
            if let Some(capture) = self.capture.lock().clone() {
                return capture.add(self.id, node());
            }
            capture::check_legacy(self)?;
        }
        if self.last.load(Relaxed) == NEVER {
            return Ok(());
        }
        let number = driver()?.queue(self.context.gpu_index, work());
        self.follow(number);
        Ok(())
    }

    /// All its work is done.
    pub(crate) fn is_idle(&self) -> Answer<bool> {
        Ok(driver()?.is_done(self.context.gpu_index, self.behind()))
    }

    /// Waits for all its work.
    pub(crate) fn wait(&self) -> Answer {
        let driver = driver()?;
        driver.wait_until_done(self.context.gpu_index, self.behind());
        driver.settle(self.context.gpu_index);
        // The MPS server may have gone meanwhile.
        crate::driver::driver().map(|_| ())
    }
}

/// The stream of a handle; `own`: the default is the thread's.
pub(crate) fn find(stream: Handle, own: bool) -> Answer<Arc<Stream>> {
    let thread = match stream {
        LEGACY => None,
        PER_THREAD => Some(std::thread::current().id()),
        0 => own.then(|| std::thread::current().id()),
        handle => return driver()?.objects.streams.get(handle, ERROR_INVALID_HANDLE),
    };
    let context = current()?;
    let mut streams = context.defaults.streams.lock();
    if let Some((_, stream)) = streams.iter().find(|(owner, _)| *owner == thread) {
        return Ok(Arc::clone(stream));
    }
    let kind = if thread.is_none() {
        StreamKind::Legacy
    } else {
        StreamKind::Blocking
    };
    let stream = Arc::new(Stream::new(context, kind, 0));
    streams.push((thread, Arc::clone(&stream)));
    Ok(stream)
}

/// The context in which a stream's work runs.
pub(crate) fn context_of(stream: Handle, own: bool) -> Answer<ContextRef> {
    Ok(find(stream, own)?.context)
}
