//! CUDA events in streams, before and after launches that are measured. They are reused, and their
//! times are read when the process launches again.
//!
//! No event is recorded in a stream that is being captured, no call waits for one, and no event is
//! used after its context ended.

use std::collections::VecDeque;

use aliquot_pacer::cost::Running;
use aliquot_pacer::scale::Extent;

use crate::clock;
use crate::driver::call;
use crate::ffi::{Code, Handle, Out, SUCCESS};
use crate::lock::FutexLock;
use crate::stream::{context_of, identity, is_captured, with_current, with_relaxed_capture};

const NOT_READY: Code = 600;
/// Launches on a device that may be measured at once; others are not measured.
const MAX_PENDING: usize = 32;
/// Of these in one stream, so that a stream that waits for something does not keep others from
/// being measured.
const MAX_PENDING_OF_STREAM: usize = 16;
/// Longest time in nanoseconds between recording the first event and the second. Beyond it, the
/// time between them may not be the launch's: the stream may have been idle meanwhile.
const MAX_MARK_GAP: u64 = 60_000;

#[derive(Clone, Copy, Debug)]
struct EventPair {
    context: Handle,
    before: Handle,
    after: Handle,
}

/// A launch whose first event is recorded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StartedMeasurement {
    pair: EventPair,
    /// Before and after the event was recorded.
    when: [u64; 2],
    /// All work of the stream was done before: the device waits for the launch.
    idle: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct MeasuredLaunch {
    pub(crate) key: u64,
    /// How much of which function it runs.
    pub(crate) extent: Extent,
    pub(crate) charged: u64,
    /// What has work on the device when it is launched.
    pub(crate) running: Running,
    /// Other threads launch too.
    pub(crate) overlapped: bool,
    /// Nanoseconds for which the container's launches on other devices had waited by then.
    pub(crate) delayed: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct LaunchMeasurement {
    pub(crate) launch: MeasuredLaunch,
    /// Nanoseconds between its events; `None` if unknown.
    pub(crate) took: Option<u64>,
    pub(crate) disturbed: bool,
}

#[derive(Clone, Copy, Debug)]
struct PendingMeasurement {
    pair: EventPair,
    /// The [`identity`] of its stream.
    stream: Handle,
    launch: MeasuredLaunch,
    disturbed: bool,
    /// Nanoseconds between the events in which the device waited for us.
    gap: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Markers {
    pending: Queue<PendingMeasurement>,
    idle: FutexLock<Vec<EventPair>>,
}

#[derive(Debug)]
pub(crate) struct ContextMarks {
    pending: Vec<PendingMeasurement>,
    idle: Vec<EventPair>,
}

impl ContextMarks {
    /// The launches that are measured by them.
    pub(crate) fn launches(self) -> impl Iterator<Item = MeasuredLaunch> {
        self.pending.into_iter().map(|pending| pending.launch)
    }
}

impl Markers {
    /// Whether no launch can be measured until another's measurement ends.
    pub(crate) fn is_full(&self) -> bool {
        self.pending.count(|_| true) >= MAX_PENDING
    }

    /// Whether no launch of this stream can be measured until the measurement of another one ends.
    pub(crate) fn is_stream_full(&self, stream: Handle) -> bool {
        self.pending_of(Some(stream)) >= MAX_PENDING_OF_STREAM
    }

    /// Launches of a stream, or of all, that are being measured.
    pub(crate) fn pending_of(&self, stream: Option<Handle>) -> usize {
        let stream = stream.map(identity);
        let is_so = |one: &PendingMeasurement| stream.is_none_or(|stream| one.stream == stream);
        self.pending.count(is_so)
    }

    /// The streams of launches that are being measured.
    pub(crate) fn streams(&self) -> usize {
        let mut streams = Vec::with_capacity(MAX_PENDING);
        self.pending.count(|one| {
            if !streams.contains(&one.stream) {
                streams.push(one.stream);
            }
            false
        });
        streams.len()
    }

    /// Gives up measurements that were waited for in vain, so that other launches can be measured.
    pub(crate) fn abandon(&self, mut on_lost: impl FnMut(MeasuredLaunch)) {
        for _ in 0..MAX_PENDING {
            let Some((context, one)) = self.pending.begin_query() else {
                return;
            };
            for event in [one.pair.before, one.pair.after] {
                // The driver keeps it until the device has passed it.
                let _ = call::cuEventDestroy_v2(event);
            }
            self.pending.finish_query(context, None);
            on_lost(one.launch);
        }
    }

    /// Records the event before a launch; `None` if it is not measured.
    pub(crate) fn begin(&self, stream: Handle) -> Option<StartedMeasurement> {
        with_relaxed_capture(|| {
            // The driver reports the legacy stream as capturing where an event in it would end a
            // capture.
            if is_captured(stream) || self.is_full() || self.is_stream_full(stream) {
                return None;
            }
            let pair = self.pair(stream)?;
            // If the stream is idle, the device waits for the launch. It is asked before the event
            // is recorded, because that is not ready at once even on an idle stream.
            let idle = call::cuStreamQuery(stream) == SUCCESS;
            let when = clock::now();
            if call::cuEventRecord(pair.before, stream) == SUCCESS {
                let when = [when, clock::now()];
                return Some(StartedMeasurement { pair, when, idle });
            }
            self.idle.lock().push(pair);
            None
        })
    }

    /// Records the event after a launch; false if it will not be measured.
    pub(crate) fn end(
        &self,
        started: StartedMeasurement,
        stream: Handle,
        launch: MeasuredLaunch,
    ) -> bool {
        let launched = clock::now();
        let set =
            with_relaxed_capture(|| call::cuEventRecord(started.pair.after, stream) == SUCCESS);
        if set {
            let [before, ready] = started.when;
            let disturbed = clock::now().saturating_sub(before) > MAX_MARK_GAP;
            // The event and the launch reached the device at the end of their calls.
            let gap = launched.saturating_sub(ready);
            let pending = PendingMeasurement {
                pair: started.pair,
                stream: identity(stream),
                launch,
                disturbed,
                gap: if started.idle { gap } else { 0 },
            };
            self.pending.put(pending.pair.context, pending);
        } else {
            self.idle.lock().push(started.pair);
        }
        set
    }

    /// A launch that failed is not measured.
    pub(crate) fn cancel(&self, started: StartedMeasurement) {
        self.idle.lock().push(started.pair);
    }

    /// Reports finished measurements, polling at most `max_polls` launches.
    pub(crate) fn poll(&self, max_polls: usize, mut learn: impl FnMut(LaunchMeasurement)) {
        if self.pending.count(|_| true) == 0 {
            return;
        }
        with_relaxed_capture(|| {
            for _ in 0..max_polls {
                // Taken out, so that no driver call is made under the lock.
                let Some((context, pending)) = self.pending.begin_query() else {
                    return;
                };
                let code = call::cuEventQuery(pending.pair.after);
                if code == NOT_READY {
                    self.pending.finish_query(context, Some(pending));
                    continue;
                }
                let took = (code == SUCCESS).then(|| elapsed(pending.pair)).flatten();
                // After an error they end with their context.
                if code == SUCCESS {
                    self.idle.lock().push(pending.pair);
                }
                self.pending.finish_query(context, None);
                learn(LaunchMeasurement {
                    launch: pending.launch,
                    took: took.map(|took| own_time(took, pending.gap, pending.disturbed)),
                    disturbed: pending.disturbed,
                });
            }
        });
    }

    /// Takes out the events of a context that may end now; returns when none of them is being
    /// queried.
    pub(crate) fn detach(&self, context: Handle) -> ContextMarks {
        // First the pending ones: a poll puts a pair among the idle ones before it ends its query.
        let pending = self.pending.detach(context);
        let idle = self
            .idle
            .lock()
            .extract_if(.., |pair| pair.context == context)
            .collect();
        ContextMarks { pending, idle }
    }

    /// Undoes [`Self::detach`]: the context lives on.
    pub(crate) fn put_back(&self, marks: ContextMarks) {
        for pending in marks.pending {
            self.pending.put(pending.pair.context, pending);
        }
        self.idle.lock().extend(marks.idle);
    }

    fn pair(&self, stream: Handle) -> Option<EventPair> {
        // Events and stream must belong to one context, which need not be the thread's.
        let context = context_of(stream);
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
        let made = with_current(context, || {
            if call::cuEventCreate(Out::to(&mut before), 0) != SUCCESS {
                return false;
            }
            let both = call::cuEventCreate(Out::to(&mut after), 0) == SUCCESS;
            if !both {
                let _ = call::cuEventDestroy_v2(before);
            }
            both
        });
        (made == Ok(true)).then_some(EventPair {
            context,
            before,
            after,
        })
    }
}

/// What a launch itself took of the nanoseconds between its events: all but the `gap` in which the
/// device waited for us. If the thread was delayed, all of it: the launch may have reached the device
/// before, and a program on a crowded machine would else be charged for less than it uses.
fn own_time(took: u64, gap: u64, disturbed: bool) -> u64 {
    if disturbed {
        return took;
    }
    took - gap.min(took - took / 8)
}

/// Nanoseconds between the events of a pair.
fn elapsed(pair: EventPair) -> Option<u64> {
    let mut milliseconds = 0.0;
    let code = call::cuEventElapsedTime(Out::to(&mut milliseconds), pair.before, pair.after);
    let valid = code == SUCCESS && (0.0..1e9).contains(&milliseconds);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and 1e15"
    )]
    valid.then(|| (f64::from(milliseconds) * 1e6) as u64)
}

/// A queue of items to query, each of one context. Whoever queries an item has taken it out, so
/// that no driver call is made under the lock; whoever ends a context waits until no item of it is
/// being queried.
#[derive(Debug)]
struct Queue<T>(FutexLock<QueueState<T>>);

#[derive(Debug)]
struct QueueState<T> {
    waiting: VecDeque<(Handle, T)>,
    /// The contexts of the items that are being queried.
    querying: Vec<Handle>,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        let (waiting, querying) = (VecDeque::new(), Vec::new());
        Self(FutexLock::new(QueueState { waiting, querying }))
    }
}

impl<T> Queue<T> {
    fn count(&self, mut is_so: impl FnMut(&T) -> bool) -> usize {
        let state = self.0.lock();
        state.waiting.iter().filter(|(_, one)| is_so(one)).count()
    }

    fn put(&self, context: Handle, one: T) {
        self.0.lock().waiting.push_back((context, one));
    }

    /// Takes the next item out, with its context, which must not end before [`Self::finish_query`].
    fn begin_query(&self) -> Option<(Handle, T)> {
        let mut state = self.0.lock();
        let (context, one) = state.waiting.pop_front()?;
        state.querying.push(context);
        Some((context, one))
    }

    /// Ends a query; the item waits again if it is given back.
    fn finish_query(&self, context: Handle, back: Option<T>) {
        let mut state = self.0.lock();
        if let Some(place) = state.querying.iter().position(|one| *one == context) {
            state.querying.swap_remove(place);
        }
        state.waiting.extend(back.map(|one| (context, one)));
    }

    /// Takes out all items of a context; returns when none of them is being queried.
    fn detach(&self, context: Handle) -> Vec<T> {
        let mut found = Vec::new();
        loop {
            let mut state = self.0.lock();
            let all = std::mem::take(&mut state.waiting);
            let (detached, left): (VecDeque<_>, _) =
                all.into_iter().partition(|(of, _)| *of == context);
            state.waiting = left;
            found.extend(detached.into_iter().map(|(_, one)| one));
            if !state.querying.contains(&context) {
                return found;
            }
            drop(state);
            clock::pause();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{RecvTimeoutError, channel};
    use std::time::Duration;

    use super::*;

    #[test]
    fn thread_that_is_delayed_during_launch_makes_it_no_cheaper() {
        const MS: u64 = 1_000_000;
        assert_eq!(own_time(10 * MS, 9 * MS, true), 10 * MS);
        assert_eq!(own_time(10 * MS, 20_000, false), 10 * MS - 20_000);
        assert_eq!(own_time(8_000, 50_000, false), 1_000, "never nothing");
    }

    #[test]
    fn detach_waits_for_event_query_in_same_context() {
        for is_ready in [true, false] {
            let queue = Queue::default();
            for (context, one) in [(7, "a"), (8, "b"), (7, "c")] {
                queue.put(context, one);
            }
            let (context, one) = queue.begin_query().expect("three wait");
            let (sender, receiver) = channel();
            std::thread::scope(|scope| {
                scope.spawn(|| sender.send(queue.detach(7)).expect("a receiver"));
                // However late it begins, it must not return.
                let early = receiver.recv_timeout(Duration::from_millis(100));
                assert_eq!(early, Err(RecvTimeoutError::Timeout));
                queue.finish_query(context, (!is_ready).then_some(one));
                let detached = receiver.recv_timeout(Duration::from_mins(1));
                let detached = detached.expect("it ends");
                let expected = if is_ready { vec!["c"] } else { vec!["c", "a"] };
                assert_eq!(detached, expected);
            });
            assert_eq!(queue.detach(9), [""; 0]);
            // Those of others are not waited for.
            assert_eq!(queue.begin_query(), Some((8, "b")));
            assert_eq!(queue.begin_query(), None);
        }
    }
}
