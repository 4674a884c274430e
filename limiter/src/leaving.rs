//! Memory that was freed in the order of a stream and was not of a pool: it is the card's until the
//! stream has come so far. An event behind the free says when; until then the charge stays.
//!
//! Fed by: [`crate::pool`]; [`crate::account`] and [`crate::view`], before anything is refused or
//! called free. Must not: give back what the driver still has, or keep what ended with its context.

use crate::capture;
use crate::context;
use crate::ffi::{Handle, Out, SUCCESS};
use crate::ledger::Entry;
use crate::lock::Lock;
use crate::process::Process;
use crate::table::call;

/// `CU_EVENT_DISABLE_TIMING`.
const WITHOUT_TIME: u32 = 2;
/// How many are looked at with each that is added.
const LOOKS: usize = 4;

/// One thing that was freed.
#[derive(Clone, Copy, Debug)]
struct Freed {
    at: u64,
    entry: Entry,
    /// Behind the free; `None`: it could not be set, so the charge ends with the context.
    mark: Option<Mark>,
}

#[derive(Clone, Copy, Debug)]
struct Mark {
    context: Handle,
    event: Handle,
}

/// What of it ends with a context.
#[derive(Debug)]
pub(crate) struct Left {
    context: Handle,
    freed: Vec<Freed>,
    idle: Vec<Mark>,
}

/// What leaves, the oldest first, and events that can be used again.
#[derive(Debug, Default)]
pub(crate) struct Leaving(Lock<Vec<Freed>>, Lock<Vec<Mark>>);

impl Leaving {
    /// Something that was taken out of the ledger was freed in a stream.
    pub(crate) fn add(&self, process: &Process, (at, entry): (u64, Entry), stream: Handle) {
        let mark = capture::aside(|| self.mark(stream));
        self.0.lock().push(Freed { at, entry, mark });
        self.look_at(process, LOOKS);
    }

    /// Gives back all that was reached.
    pub(crate) fn look(&self, process: &Process) {
        self.look_at(process, usize::MAX);
    }

    fn look_at(&self, process: &Process, most: usize) {
        // Held across the questions: another thread is not to be refused what is found free here.
        let mut all = self.0.lock();
        if all.is_empty() {
            return;
        }
        let end = most.min(all.len());
        let reached = |mark: Mark| call::cuEventQuery(mark.event) == SUCCESS;
        capture::aside(|| {
            for one in all.extract_if(..end, |one| one.mark.is_some_and(reached)) {
                self.1.lock().extend(one.mark);
                process.left(one.at, one.entry);
            }
        });
    }

    /// Takes out what ends with a context that may end now; returns when nobody asks for a mark.
    pub(crate) fn set_aside(&self, context: Handle) -> Left {
        let ends = |one: &Freed| {
            one.entry.context == context || one.mark.is_some_and(|mark| mark.context == context)
        };
        // First what is asked for under the lock: what was reached gets among the idle ones.
        let freed = self.0.lock().extract_if(.., |one| ends(one)).collect();
        let mut idle = self.1.lock();
        let idle = idle.extract_if(.., |mark| mark.context == context);
        Left {
            context,
            freed,
            idle: idle.collect(),
        }
    }

    /// Ends [`Self::set_aside`]: the context lives on.
    pub(crate) fn put_back(&self, left: Left) {
        self.0.lock().extend(left.freed);
        self.1.lock().extend(left.idle);
    }

    /// A context ended, with what was allocated in it and the streams that it had.
    pub(crate) fn end(&self, process: &Process, left: Left) {
        for one in left.freed {
            // Its event may be another context's, and is used again.
            let mark = one.mark.filter(|mark| mark.context != left.context);
            self.1.lock().extend(mark);
            process.left(one.at, one.entry);
        }
    }

    /// Sets a mark in a stream.
    fn mark(&self, stream: Handle) -> Option<Mark> {
        let context = context::of_stream(stream);
        let known = self
            .1
            .lock()
            .extract_if(.., |mark| mark.context == context)
            .next();
        let mark = known.or_else(|| {
            let mut event = 0;
            let made = context::within(context, || {
                call::cuEventCreate(Out::to(&mut event), WITHOUT_TIME)
            });
            (made == Ok(SUCCESS)).then_some(Mark { context, event })
        })?;
        let set = call::cuEventRecord(mark.event, stream) == SUCCESS;
        if !set {
            self.1.lock().push(mark);
        }
        set.then_some(mark)
    }
}
