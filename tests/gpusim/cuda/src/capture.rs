//! Capture of streams into graphs: modes, the calls that they forbid, and how such a call
//! invalidates a capture.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::thread::ThreadId;

use parking_lot::Mutex;

use crate::codes::{
    ERROR_STREAM_CAPTURE_IMPLICIT, ERROR_STREAM_CAPTURE_INVALIDATED, ERROR_STREAM_CAPTURE_UNJOINED,
    ERROR_STREAM_CAPTURE_UNSUPPORTED,
};
use crate::context::ContextRef;
use crate::ffi::Answer;
use crate::streams::{Stream, StreamKind};

/// `CUstreamCaptureMode`.
pub(crate) const GLOBAL: u32 = 0;
pub(crate) const RELAXED: u32 = 2;

#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) handle: u64,
    pub(crate) work: Work,
    pub(crate) after: Vec<usize>,
}

/// What a node does.
#[derive(Clone, Copy)]
pub(crate) enum Work {
    Kernel {
        function: u64,
    },
    /// A copy, a fill or a whole graph: a launch takes no time for it.
    Other,
    Alloc {
        address: u64,
        bytes: u64,
        gpu_index: usize,
    },
    Free {
        address: u64,
    },
}

impl Node {
    pub(crate) fn new(work: Work) -> Self {
        Self {
            handle: crate::objects::new_handle(),
            work,
            after: Vec::new(),
        }
    }
}

/// A capture in progress.
pub(crate) struct Capture {
    pub(crate) id: u64,
    mode: u32,
    thread: ThreadId,
    /// The stream in which it began.
    pub(crate) origin: u64,
    context: ContextRef,
    /// Some stream of it waits for the legacy one.
    blocking: AtomicBool,
    invalid: AtomicBool,
    built: Mutex<CapturedNodes>,
}

#[derive(Default)]
struct CapturedNodes {
    nodes: Vec<Node>,
    /// The last nodes of each stream.
    tails: HashMap<u64, Vec<usize>>,
}

static ONGOING: Mutex<Vec<Arc<Capture>>> = Mutex::new(Vec::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static MODE: Cell<u32> = const { Cell::new(GLOBAL) };
}

/// Whether any capture is in progress.
#[inline]
pub(crate) fn any() -> bool {
    COUNT.load(Relaxed) > 0
}

pub(crate) fn begin(stream: &Stream, mode: u32) -> Arc<Capture> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let capture = Arc::new(Capture {
        id: NEXT.fetch_add(1, Relaxed),
        mode,
        thread: std::thread::current().id(),
        origin: stream.id,
        context: stream.context,
        blocking: AtomicBool::new(stream.kind == StreamKind::Blocking),
        invalid: AtomicBool::new(false),
        built: Mutex::default(),
    });
    ONGOING.lock().push(Arc::clone(&capture));
    COUNT.fetch_add(1, Relaxed);
    capture
}

/// Sets the thread's mode and gives the one before.
pub(crate) fn exchange_mode(mode: u32) -> u32 {
    MODE.replace(mode)
}

/// Rejects a call that could wait for captured work or change what it uses, where some capture
/// forbids such calls to this thread; the captures that do are invalid from then on.
pub(crate) fn check_unsafe() -> Answer {
    if !any() {
        return Ok(());
    }
    let (own, mode) = (std::thread::current().id(), MODE.get());
    let ongoing = ONGOING.lock();
    let forbids = |capture: &&Arc<Capture>| match mode {
        RELAXED => false,
        _ if capture.thread == own => capture.mode != RELAXED,
        GLOBAL => capture.mode == GLOBAL,
        _ => false,
    };
    let mut refused = Ok(());
    for capture in ongoing.iter().filter(forbids) {
        capture.invalid.store(true, Relaxed);
        refused = Err(ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    refused
}

/// Rejects a call that would wait for a stream that is captured.
pub(crate) fn check_stream(stream: &Stream) -> Answer {
    if let Some(capture) = stream.capture.lock().as_ref() {
        capture.invalid.store(true, Relaxed);
        return Err(ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    check_legacy(stream)
}

/// Rejects use of the legacy stream while a blocking stream of the context is captured.
pub(crate) fn check_legacy(stream: &Stream) -> Answer {
    let mut refused = Ok(());
    each_that_forbids(stream, |capture| {
        capture.invalid.store(true, Relaxed);
        refused = Err(ERROR_STREAM_CAPTURE_IMPLICIT);
    });
    refused
}

/// Rejects a query of the legacy stream in the same case, without invalidating a capture.
pub(crate) fn check_question(stream: &Stream) -> Answer {
    let mut refused = Ok(());
    each_that_forbids(stream, |_| refused = Err(ERROR_STREAM_CAPTURE_IMPLICIT));
    refused
}

/// The captures that forbid the use of a stream that is not captured itself.
fn each_that_forbids(stream: &Stream, mut act: impl FnMut(&Capture)) {
    if stream.kind != StreamKind::Legacy || !any() {
        return;
    }
    let ongoing = ONGOING.lock();
    let forbids = |capture: &&Arc<Capture>| {
        capture.blocking.load(Relaxed) && capture.context.is(stream.context)
    };
    for capture in ongoing.iter().filter(forbids) {
        act(capture);
    }
}

impl Capture {
    pub(crate) fn is_invalid(&self) -> bool {
        self.invalid.load(Relaxed)
    }

    pub(crate) fn add(&self, stream: u64, mut node: Node) -> Answer {
        if self.is_invalid() {
            return Err(ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        let mut built = self.built.lock();
        let place = built.nodes.len();
        node.after = built.tails.insert(stream, vec![place]).unwrap_or_default();
        built.nodes.push(node);
        Ok(())
    }

    /// The nodes after which a stream's next one comes.
    pub(crate) fn tail(&self, stream: u64) -> Vec<usize> {
        let built = self.built.lock();
        built.tails.get(&stream).cloned().unwrap_or_default()
    }

    /// A stream's next node comes after these too.
    pub(crate) fn join(&self, stream: &Stream, nodes: &[usize]) {
        self.blocking
            .fetch_or(stream.kind == StreamKind::Blocking, Relaxed);
        let mut built = self.built.lock();
        let tail = built.tails.entry(stream.id).or_default();
        tail.extend(nodes);
        tail.sort_unstable();
        tail.dedup();
    }

    /// Ends the capture; returns its nodes.
    pub(crate) fn end(self: &Arc<Self>) -> Answer<Vec<Node>> {
        let mut ongoing = ONGOING.lock();
        ongoing.retain(|other| !Arc::ptr_eq(other, self));
        COUNT.store(ongoing.len(), Relaxed);
        drop(ongoing);
        if self.is_invalid() {
            return Err(ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        let built = self.built.lock();
        let mut seen = HashSet::new();
        let mut open = built.tails.get(&self.origin).cloned().unwrap_or_default();
        while let Some(place) = open.pop() {
            if seen.insert(place) {
                open.extend(&built.nodes[place].after);
            }
        }
        if seen.len() < built.nodes.len() {
            return Err(ERROR_STREAM_CAPTURE_UNJOINED);
        }
        Ok(built.nodes.clone())
    }

    /// The capture failed.
    pub(crate) fn invalidate(&self) {
        self.invalid.store(true, Relaxed);
    }

    /// Whether this thread may end it.
    pub(crate) fn is_of_this_thread(&self) -> bool {
        self.mode == RELAXED || self.thread == std::thread::current().id()
    }
}
