//! Marks in streams, before and after launches that are measured: events of the driver, kept for
//! the next launch, asked for their times when the process launches again.
//!
//! Fed by: [`crate::pace`]. Must not: set a mark in a stream that is captured, wait for one, or use
//! an event whose context is gone.

mod queue;

use crate::capture::{aside, is_captured};
use crate::clock;
use crate::context;
use crate::ffi::{Code, Handle, Out, SUCCESS};
use crate::lock::Lock;
use crate::table::call;
use queue::Queue;

/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: Code = 600;
/// Launches of a card that may be measured at once; the rest is not.
const MOST: usize = 16;
/// Of these in one stream: one that waits for something keeps no other from being measured.
const MOST_OF_STREAM: usize = 4;
/// Nanoseconds between setting the first mark and the second, beyond which the time between them
/// may not be the launch's: the stream may have been idle meanwhile.
const PROMPT: u64 = 60_000;

/// Two events of a context.
#[derive(Clone, Copy, Debug)]
struct Pair {
    context: Handle,
    before: Handle,
    after: Handle,
}

/// A launch whose first mark is set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    pair: Pair,
    /// When that began, and when it was done.
    when: [u64; 2],
    /// The card had passed the mark by then: it waits for the launch.
    idle: bool,
}

/// A launch that is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Launch {
    /// Its kernel.
    pub(crate) key: u64,
    /// Nanoseconds that it was charged.
    pub(crate) charged: u64,
    /// Tenants on the card.
    pub(crate) sharing: u32,
    /// Other work of the container may run at the same time.
    pub(crate) overlapped: bool,
    /// Nanoseconds for which the container's launches on other cards had waited by then.
    pub(crate) held: u64,
}

/// A launch that was measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    pub(crate) launch: Launch,
    /// Nanoseconds between its marks; `None`: not to be known.
    pub(crate) took: Option<u64>,
    /// The thread was held up between the marks.
    pub(crate) disturbed: bool,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    pair: Pair,
    stream: Handle,
    launch: Launch,
    disturbed: bool,
    /// Nanoseconds between the marks in which the card waited for us.
    gap: u64,
}

/// The marks of a process on one card.
#[derive(Debug, Default)]
pub(crate) struct Markers {
    open: Queue<Open>,
    idle: Lock<Vec<Pair>>,
}

/// The marks of one context.
#[derive(Debug)]
pub(crate) struct Marks {
    open: Vec<Open>,
    idle: Vec<Pair>,
}

impl Marks {
    /// The launches that are measured by them.
    pub(crate) fn launches(self) -> impl Iterator<Item = Launch> {
        self.open.into_iter().map(|open| open.launch)
    }
}

impl Markers {
    /// No launch can be measured before another's measure is known.
    pub(crate) fn is_full(&self) -> bool {
        self.open.count(|_| true) >= MOST
    }

    /// So many launches of this stream are measured that no more of them can be.
    pub(crate) fn is_crowded(&self, stream: Handle) -> bool {
        self.open.count(|one| one.stream == stream) >= MOST_OF_STREAM
    }

    /// What is open was waited for in vain: its marks are given up, and others can be set.
    pub(crate) fn give_up(&self, mut lose: impl FnMut(Launch)) {
        for _ in 0..MOST {
            let Some((context, one)) = self.open.take() else {
                return;
            };
            for event in [one.pair.before, one.pair.after] {
                // The driver keeps it until the card has passed it.
                let _ = call::cuEventDestroy_v2(event);
            }
            self.open.asked(context, None);
            lose(one.launch);
        }
    }

    /// Sets the mark before a launch; `None`: it is not measured.
    pub(crate) fn begin(&self, stream: Handle) -> Option<Begun> {
        aside(|| {
            // Of the legacy stream the driver says so where a mark there would end a capture.
            if is_captured(stream) || self.is_full() || self.is_crowded(stream) {
                return None;
            }
            let pair = self.pair(stream)?;
            let when = clock::now();
            if call::cuEventRecord(pair.before, stream) == SUCCESS {
                let idle = call::cuEventQuery(pair.before) == SUCCESS;
                let when = [when, clock::now()];
                return Some(Begun { pair, when, idle });
            }
            self.idle.lock().push(pair);
            None
        })
    }

    /// Sets the mark after a launch; false: it will not be measured.
    pub(crate) fn end(&self, begun: Begun, stream: Handle, launch: Launch) -> bool {
        let launched = clock::now();
        let set = aside(|| call::cuEventRecord(begun.pair.after, stream) == SUCCESS);
        if set {
            let [before, ready] = begun.when;
            let disturbed = clock::now().saturating_sub(before) > PROMPT;
            // The launch reached the card somewhere in its call.
            let gap = ready.saturating_sub(before) + launched.saturating_sub(ready) / 2;
            let open = Open {
                pair: begun.pair,
                stream,
                launch,
                disturbed,
                gap: if begun.idle { gap } else { 0 },
            };
            self.open.put(open.pair.context, open);
        }
        set
    }

    /// A launch that failed is not measured.
    pub(crate) fn cancel(&self, begun: Begun) {
        self.idle.lock().push(begun.pair);
    }

    /// What has become known, looking at no more than `looks` launches.
    pub(crate) fn poll(&self, looks: usize, mut learn: impl FnMut(Measured)) {
        if self.open.count(|_| true) == 0 {
            return;
        }
        aside(|| {
            for _ in 0..looks {
                // Taken out, so that no driver call is made under the lock.
                let Some((context, open)) = self.open.take() else {
                    return;
                };
                let code = call::cuEventQuery(open.pair.after);
                if code == NOT_READY {
                    self.open.asked(context, Some(open));
                    continue;
                }
                let took = (code == SUCCESS).then(|| elapsed(open.pair)).flatten();
                if took.is_some() {
                    self.idle.lock().push(open.pair);
                }
                self.open.asked(context, None);
                learn(Measured {
                    launch: open.launch,
                    took: took.map(|took| took - open.gap.min(took / 2)),
                    disturbed: open.disturbed,
                });
            }
        });
    }

    /// Takes out what is of a context, whose events may end now; returns when nobody asks for one.
    pub(crate) fn set_aside(&self, context: Handle) -> Marks {
        // First what is open: who asks puts a pair among the idle ones before it is done.
        let open = self.open.set_aside(context);
        let idle = self
            .idle
            .lock()
            .extract_if(.., |pair| pair.context == context)
            .collect();
        Marks { open, idle }
    }

    /// Ends [`Self::set_aside`]: the context lives on.
    pub(crate) fn put_back(&self, marks: Marks) {
        for open in marks.open {
            self.open.put(open.pair.context, open);
        }
        self.idle.lock().extend(marks.idle);
    }

    fn pair(&self, stream: Handle) -> Option<Pair> {
        // Events and stream must be of one context, which need not be the thread's.
        let context = context::of_stream(stream);
        if context == 0 {
            return None;
        }
        let mut idle = self.idle.lock();
        let known = idle.iter().position(|pair| pair.context == context);
        if let Some(known) = known {
            return Some(idle.swap_remove(known));
        }
        drop(idle);
        let (mut before, mut after) = (0, 0);
        let made = context::within(context, || {
            call::cuEventCreate(Out::to(&mut before), 0) == SUCCESS
                && call::cuEventCreate(Out::to(&mut after), 0) == SUCCESS
        });
        (made == Ok(true)).then_some(Pair {
            context,
            before,
            after,
        })
    }
}

/// Nanoseconds between the marks of a pair.
fn elapsed(pair: Pair) -> Option<u64> {
    let mut milliseconds = 0.0;
    let code = call::cuEventElapsedTime(Out::to(&mut milliseconds), pair.before, pair.after);
    let sound = code == SUCCESS && (0.0..1e9).contains(&milliseconds);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and 1e15"
    )]
    sound.then(|| (f64::from(milliseconds) * 1e6) as u64)
}
