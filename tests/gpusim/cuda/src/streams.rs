//! Streams: the two default ones of each context and those that programs make. A stream only knows
//! after which number of the process's work it may go on. That work runs in the order of launch, or
//! streams overlap.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::ThreadId;

use parking_lot::Mutex;

use crate::capture::{self, Capture, Node};
use crate::context::{ContextRef, current};
use crate::driver::driver;
use crate::ffi::Answer;
use crate::timeline::{Mark, NEVER};
use crate::types::Handle;

/// `CU_STREAM_LEGACY` and `CU_STREAM_PER_THREAD`.
const LEGACY: Handle = 1;
const PER_THREAD: Handle = 2;

pub(crate) struct Stream {
    pub(crate) context: ContextRef,
    pub(crate) kind: StreamKind,
    pub(crate) priority: i32,
    /// Distinguishes streams.
    pub(crate) id: u64,
    /// The number of the work after which it may go on.
    last: AtomicU64,
    /// Retained while something is put into it, so that streams of many threads run in order.
    order: Mutex<()>,
    /// A mark that a GPU must pass before this stream is idle, besides the work.
    mark: Mutex<Option<Arc<Mark>>>,
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
    /// The number of each blocking stream's work, by the stream's id.
    blocking: Mutex<Vec<(u64, u64)>>,
    newest_legacy: AtomicU64,
}

/// Blocking streams from which on those without work are forgotten.
const MANY_STREAMS: usize = 32;

impl Defaults {
    /// The blocking stream of an id may go on after the work of a number; all up to `done` is done.
    fn put_blocking(&self, id: u64, number: u64, done: u64) {
        let mut blocking = self.blocking.lock();
        if let Some(known) = blocking.iter_mut().find(|known| known.0 == id) {
            known.1 = number;
            return;
        }
        if blocking.len() >= MANY_STREAMS {
            blocking.retain(|(_, number)| *number > done);
        }
        blocking.push((id, number));
    }
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
            order: Mutex::new(()),
            mark: Mutex::new(None),
            capture: Mutex::new(None),
        }
    }

    /// Waits for a word that is never written: later launches never run.
    pub(crate) fn wait_forever(&self) {
        let _order = self.order.lock();
        self.last.store(NEVER, Relaxed);
    }

    /// Numbers of the work after which something on this stream may happen.
    fn awaited(&self) -> Vec<u64> {
        let (own, defaults) = (self.last.load(Relaxed), &self.context.defaults);
        match self.kind {
            StreamKind::Legacy => {
                let blocking = defaults.blocking.lock();
                let numbers = blocking.iter().map(|(_, number)| *number);
                numbers.chain([own]).collect()
            }
            StreamKind::Blocking => vec![own, defaults.newest_legacy.load(Relaxed)],
            StreamKind::Free => vec![own],
        }
    }

    /// The number of the work after which something on this stream may happen.
    pub(crate) fn behind(&self) -> u64 {
        let numbers = self.awaited();
        let newest = || numbers.iter().copied().max().unwrap_or(0);
        driver().map_or_else(
            |_| newest(),
            |driver| driver.join(self.context.gpu_index, &numbers),
        )
    }

    /// What follows on this stream comes after the work of a number too.
    pub(crate) fn follow(&self, number: u64) -> Answer {
        let _order = self.order.lock();
        let numbers = [self.last.load(Relaxed), number];
        let number = driver()?.join(self.context.gpu_index, &numbers);
        self.go_on_after(number)
    }

    fn go_on_after(&self, number: u64) -> Answer {
        self.last.store(number, Relaxed);
        let defaults = &self.context.defaults;
        match self.kind {
            StreamKind::Legacy => defaults.newest_legacy.store(number, Relaxed),
            StreamKind::Blocking => {
                let done = driver()?.member().all_done_to(self.context.gpu_index);
                defaults.put_blocking(self.id, number, done);
            }
            StreamKind::Free => {}
        }
        Ok(())
    }

    /// It is not idle before a GPU passed the mark.
    pub(crate) fn await_mark(&self, mark: &Arc<Mark>) {
        *self.mark.lock() = Some(Arc::clone(mark));
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
        let (driver, gpu_index) = (driver()?, self.context.gpu_index);
        driver.spend_launch_time(gpu_index);
        let work = work();
        let _order = self.order.lock();
        let behind = self.behind();
        if behind == NEVER {
            return Ok(());
        }
        self.go_on_after(driver.queue(gpu_index, work, behind))
    }

    /// What is launched on it goes into a graph.
    pub(crate) fn is_captured(&self) -> bool {
        capture::any() && self.capture.lock().is_some()
    }

    /// All its work is done.
    pub(crate) fn is_idle(&self) -> Answer<bool> {
        let (driver, gpu_index) = (driver()?, self.context.gpu_index);
        let is_done = |number: &u64| driver.is_done(gpu_index, *number);
        let mark = self.mark.lock().clone();
        Ok(self.awaited().iter().all(is_done)
            && mark.is_none_or(|mark| driver.reached(&mark).is_some()))
    }

    /// Waits for all its work.
    pub(crate) fn wait(&self) -> Answer {
        let driver = driver()?;
        for number in self.awaited() {
            driver.wait_until_done(self.context.gpu_index, number);
        }
        let mark = self.mark.lock().clone();
        if let Some(mark) = mark {
            driver.wait_for(&mark);
        }
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
        handle => return driver()?.objects.streams.get(handle),
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
