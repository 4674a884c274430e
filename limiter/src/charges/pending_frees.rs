//! Memory that was freed in stream order and did not come from a pool: the device has it until the
//! stream reaches the free. An event after the free tells when; until then it stays charged, or
//! until its context ends.

use super::allocations::{Allocations, DeviceAllocation};
use crate::driver::call;
use crate::ffi::{Handle, Out, SUCCESS};
use crate::lock::FutexLock;
use crate::process::{PerProcess, ProcessState};
use crate::stream::{context_of, with_current, with_relaxed_capture};

/// `CU_EVENT_DISABLE_TIMING`.
const WITHOUT_TIME: u32 = 2;
const MAX_CHECKED: usize = 4;

/// One free that the stream has not reached yet.
#[derive(Clone, Copy, Debug)]
struct PendingFree {
    at: u64,
    entry: DeviceAllocation,
    /// Recorded after the free; `None`: that failed, so the charge ends with the context.
    event: Option<FreeEvent>,
}

#[derive(Clone, Copy, Debug)]
struct FreeEvent {
    context: Handle,
    event: Handle,
}

/// The frees and events that end with a context.
#[derive(Debug)]
pub(crate) struct DetachedFrees {
    context: Handle,
    frees: Vec<PendingFree>,
    idle: Vec<FreeEvent>,
}

/// Frees, the oldest first, and events that can be used again.
#[derive(Debug, Default)]
pub(crate) struct PendingFrees {
    frees: FutexLock<Vec<PendingFree>>,
    idle: FutexLock<Vec<FreeEvent>>,
}

impl PendingFrees {
    pub(crate) fn of(process: &ProcessState) -> &'static Self {
        static PENDING_FREES: PerProcess<PendingFrees> = PerProcess::new();
        PENDING_FREES.of(process)
    }

    /// Adds an allocation that was freed in a stream.
    pub(crate) fn add(
        &self,
        process: &ProcessState,
        (at, entry): (u64, DeviceAllocation),
        stream: Handle,
    ) {
        let event = with_relaxed_capture(|| self.event(stream));
        self.frees.lock().push(PendingFree { at, entry, event });
        self.refresh_up_to(process, MAX_CHECKED);
    }

    /// Releases all frees that their streams have reached.
    pub(crate) fn refresh(&self, process: &ProcessState) {
        self.refresh_up_to(process, usize::MAX);
    }

    fn refresh_up_to(&self, process: &ProcessState, most: usize) {
        // Locked during the queries: another thread must not be refused what is found free here.
        let mut all = self.frees.lock();
        if all.is_empty() {
            return;
        }
        let end = most.min(all.len());
        let is_reached = |event: FreeEvent| call::cuEventQuery(event.event) == SUCCESS;
        with_relaxed_capture(|| {
            for one in all.extract_if(..end, |one| one.event.is_some_and(is_reached)) {
                self.idle.lock().extend(one.event);
                Allocations::of(process).end(process, one.at, one.entry);
            }
        });
    }

    /// Takes out what belongs to a context that may end now; returns when no event of it is being
    /// queried.
    pub(crate) fn detach(&self, context: Handle) -> DetachedFrees {
        let ends = |one: &PendingFree| {
            one.entry.context == context || one.event.is_some_and(|event| event.context == context)
        };
        // First the frees, whose events are queried under the lock: events of reached frees become
        // idle.
        let frees = self.frees.lock().extract_if(.., |one| ends(one)).collect();
        let mut all_idle = self.idle.lock();
        let idle = all_idle.extract_if(.., |event| event.context == context);
        DetachedFrees {
            context,
            frees,
            idle: idle.collect(),
        }
    }

    /// Undoes [`Self::detach`]: the context lives on.
    pub(crate) fn put_back(&self, detached: DetachedFrees) {
        self.frees.lock().extend(detached.frees);
        self.idle.lock().extend(detached.idle);
    }

    /// A context ended, with its allocations and streams.
    pub(crate) fn end(&self, process: &ProcessState, detached: DetachedFrees) {
        for one in detached.frees {
            // Its event may belong to another context, and is used again.
            let event = one.event.filter(|event| event.context != detached.context);
            self.idle.lock().extend(event);
            Allocations::of(process).end(process, one.at, one.entry);
        }
    }

    fn event(&self, stream: Handle) -> Option<FreeEvent> {
        let context = context_of(stream);
        let known = self
            .idle
            .lock()
            .extract_if(.., |event| event.context == context)
            .next();
        let event = known.or_else(|| {
            let mut event = 0;
            let made = with_current(context, || {
                call::cuEventCreate(Out::to(&mut event), WITHOUT_TIME)
            });
            (made == Ok(SUCCESS)).then_some(FreeEvent { context, event })
        })?;
        let recorded = call::cuEventRecord(event.event, stream) == SUCCESS;
        if !recorded {
            self.idle.lock().push(event);
        }
        recorded.then_some(event)
    }
}
