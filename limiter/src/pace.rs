//! Launches at the container's rate: each is charged before it is made, waits when the bucket is in
//! debt or the gate closed, and now and then is measured.
//!
//! Fed by: [`crate::launch`]; the limits page at every launch, so a change of the host counts at
//! once. Must not: wait for what another process must launch first, longer than [`wait::BLIND`].

mod wait;

use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

use aliquot_pacer::bucket::Bucket;
use aliquot_pacer::cost::{Costs, Kernel, Sample};
use aliquot_pacer::credit::{CHUNK, Credit};
use aliquot_pacer::rule::{OPEN, Rule, SILENCE, UNLIMITED, Words};

use crate::ffi::{Code, Handle, SUCCESS, long};
use crate::launch::Work;
use crate::marker::{Launch, Markers, Marks, Measured};
use crate::process::{self, Process};
use crate::{capture, clock, context};

/// Percent.
const NO_LIMIT: u32 = 100;
/// Nanoseconds for which a gate that frees from the limit is believed without a look at the host:
/// one that died stops to free soon after its heartbeat is too old, however few launches there are.
const BELIEF: u64 = 1_000_000_000;
/// Marks that are looked at with each measured launch.
const LOOKS: usize = 4;

/// The launches of this process.
#[derive(Debug)]
pub(crate) struct Pace(Vec<Lane>);

/// The marks of a context, of each card.
#[derive(Debug)]
pub(crate) struct Aside(Vec<Marks>);

/// Those on one card.
#[derive(Debug, Default)]
struct Lane {
    credit: Credit,
    costs: OnceLock<Costs>,
    markers: Markers,
    /// The host was alive when it was last looked for.
    fresh: AtomicBool,
    /// Until when that is believed, on the coarse clock.
    believed: AtomicU64,
    /// The heartbeat that was found too old: while it stays, nobody need look again.
    silent: AtomicU64,
    /// Marks were waited for in vain; no more until one is passed.
    stuck: AtomicBool,
}

impl Pace {
    pub(crate) fn new(cards: usize) -> Self {
        Self((0..cards).map(|_| Lane::default()).collect())
    }

    /// Takes the marks of a context that may end now: from here on nobody asks for one of them.
    pub(crate) fn set_aside(&self, context: Handle) -> Aside {
        let lanes = self.0.iter();
        Aside(lanes.map(|lane| lane.markers.set_aside(context)).collect())
    }

    /// The context lives on.
    pub(crate) fn put_back(&self, aside: Aside) {
        for (lane, marks) in self.0.iter().zip(aside.0) {
            lane.markers.put_back(marks);
        }
    }

    /// A context ended, or is about to: what was open there will never be measured.
    pub(crate) fn forget(&self, context: Handle, aside: Aside) {
        capture::forget(context);
        for (lane, marks) in self.0.iter().zip(aside.0) {
            for launch in marks.launches() {
                lane.costs().kernel(launch.key).end();
            }
        }
    }
}

/// Makes a launch when it may be made.
#[inline]
pub(crate) fn launch(work: Work, call: impl FnOnce() -> Code) -> Code {
    match unless_free(work.stream) {
        Ok(None) => call(),
        Ok(Some(turn)) => turn.make(work, call),
        Err(code) => code,
    }
}

/// Whose turn a launch here is, unless nothing holds it. Apart, so that a launch that nothing
/// holds need not keep its arguments anywhere.
#[inline(never)]
fn unless_free(stream: Handle) -> Result<Option<Turn>, Code> {
    let process = process::required()?;
    if process.is_uncontrolled() {
        return Ok(None);
    }
    let (card, lane) = match process.pace.0.as_slice() {
        [lane] => (0, lane),
        lanes => match card_of(process, stream)? {
            card if card < lanes.len() => (card, &lanes[card]),
            _ => return Ok(None),
        },
    };
    let turn = Turn {
        process,
        card,
        lane,
        thread: thread_number(),
    };
    let held = !turn.is_open() || lane.credit.count(turn.thread, process.limits.heartbeat());
    Ok(held.then_some(turn))
}

/// A number that mostly differs between threads: where its stack is.
#[inline]
fn thread_number() -> usize {
    let here = 0_u8;
    let at = (&raw const here).addr() >> 16;
    (at ^ (at >> 4) ^ (at >> 8)) & 0xffff
}

/// Where work of a stream runs, whatever context the thread has.
fn card_of(process: &'static Process, stream: Handle) -> Result<usize, Code> {
    match context::of_stream(stream) {
        // The driver will refuse the launch.
        0 => Ok(usize::MAX),
        context => context::card_of(process, context),
    }
}

#[inline]
fn words(process: &Process, card: usize, fresh: bool) -> Words {
    let limits = &process.limits;
    Words {
        cores: limits.cores(card),
        policy: limits.policy(),
        gate: limits.gate(card).load(Relaxed),
        trim: limits.trim(card),
        tenants: limits.tenants(card),
        fresh,
    }
}

impl Lane {
    fn costs(&self) -> &Costs {
        self.costs.get_or_init(Costs::default)
    }
}

/// A launch that asks the bucket.
#[derive(Clone, Copy)]
struct Turn {
    process: &'static Process,
    card: usize,
    lane: &'static Lane,
    thread: usize,
}

impl Turn {
    /// Neither asked to be limited nor told to.
    #[inline]
    fn is_open(self) -> bool {
        let limits = &self.process.limits;
        limits.gate(self.card).load(Relaxed) == OPEN && limits.cores(self.card) == NO_LIMIT
    }

    /// Makes the launch at once where its thread has credit, or else when the bucket gives some.
    #[inline(never)]
    fn make(self, work: Work, call: impl FnOnce() -> Code) -> Code {
        let Self {
            process,
            card,
            lane,
            thread,
        } = self;
        let limits = &process.limits;
        let (gate, beat) = (limits.gate(card).load(Relaxed), limits.heartbeat());
        let fresh = lane.fresh.load(Relaxed);
        // Whether the host that said something of the gate is alive is looked for at once; one that
        // was found dead only when its heart beats again.
        let doubtful = gate != OPEN && !fresh && beat != lane.silent.load(Relaxed);
        let free = match words(process, card, fresh).rule() {
            _ if doubtful || self.is_open() => false,
            Rule::Free => {
                let believed = gate != UNLIMITED || clock::coarse() < lane.believed.load(Relaxed);
                believed && !lane.credit.count(thread, beat)
            }
            Rule::Limited(_) => {
                if lane.credit.is_due(thread, beat) {
                    self.tell();
                }
                let kernel = lane.costs().kernel(work.key);
                kernel.is_known()
                    && !capture::any()
                    && lane.credit.spend(thread, long(work.stream), kernel.cost())
            }
            Rule::Closed => false,
        };
        if free {
            return call();
        }
        self.take(work, call)
    }

    #[cold]
    fn take(self, work: Work, call: impl FnOnce() -> Code) -> Code {
        self.tell();
        let kernel = self.lane.costs().kernel(work.key);
        if matches!(self.words().rule(), Rule::Free) {
            return call();
        }
        let (stream, cost) = (long(work.stream), kernel.cost());
        if capture::any() {
            let captured = capture::aside(|| capture::is_captured(work.stream));
            if captured || (kernel.is_known() && self.lane.credit.spend(self.thread, stream, cost))
            {
                return call();
            }
        }
        self.poll();
        self.wait_while(kernel, || {
            let markers = &self.lane.markers;
            let hidden = || !kernel.is_known() && markers.is_crowded(work.stream);
            kernel.is_blind() || markers.is_full() || hidden()
        });
        let cost = kernel.cost();
        let chunk = self.lane.credit.chunk(self.thread, cost);
        let Some(rate) = self.wait_for(chunk) else {
            return call();
        };
        let until = self.compute().until;
        let credit = &self.lane.credit;
        let overlapped = credit.enter(self.thread, stream, until, (clock::now(), chunk));
        // A small kernel is measured when it comes right behind another.
        let small = kernel.is_known() && cost < CHUNK / 2 && chunk > 0;
        let begun = (!small).then(|| self.lane.markers.begin(work.stream));
        let begun = begun.flatten();
        let code = call();
        if code != SUCCESS {
            if let Some(begun) = begun {
                self.lane.markers.cancel(begun);
            }
            self.bucket().settle(rate, chunk, 0);
            return code;
        }
        credit.grant(self.thread, chunk, cost);
        if small {
            credit.measure_next(self.thread);
        }
        if let Some(begun) = begun {
            kernel.begin();
            let launch = Launch {
                key: work.key,
                charged: cost,
                sharing: self.words().sharing(),
                overlapped,
                held: self.held(),
            };
            if !self.lane.markers.end(begun, work.stream, launch) {
                kernel.end();
            }
        }
        self.compute().busy.fetch_add(chunk, Relaxed);
        code
    }

    /// What holds now, the host's sign of life looked for.
    fn words(self) -> Words {
        let beat = self.process.limits.heartbeat();
        // A clock that was set back a little does not make the host's words old, and one that was
        // set back far does not keep them for ever.
        let age = clock::since_epoch().abs_diff(beat);
        let fresh = beat != 0 && age < SILENCE;
        self.lane.fresh.store(fresh, Relaxed);
        if fresh {
            self.lane.believed.store(clock::coarse() + BELIEF, Relaxed);
        } else {
            self.lane.silent.store(beat, Relaxed);
        }
        words(self.process, self.card, fresh)
    }

    fn compute(self) -> aliquot_region::counters::Compute<'static> {
        self.process.seat.compute(self.card)
    }

    fn bucket(self) -> Bucket<'static> {
        Bucket(self.compute().bucket)
    }

    /// Tells the container's counters of the launches of this thread.
    #[cold]
    fn tell(self) {
        let (compute, beat) = (self.compute(), self.process.limits.heartbeat());
        let launches = self.lane.credit.launches(self.thread, beat);
        compute.launches.fetch_add(launches, Relaxed);
        compute.last.fetch_max(clock::now(), Relaxed);
    }

    /// Learns from marks that were passed, and corrects what was charged.
    fn poll(self) {
        self.lane
            .markers
            .poll(LOOKS, |measured| self.learn(measured));
    }

    fn learn(self, measured: Measured) {
        self.lane.stuck.store(false, Relaxed);
        let launch = measured.launch;
        let kernel: &Kernel = self.lane.costs().kernel(launch.key);
        kernel.end();
        let held = self.held().wrapping_sub(launch.held);
        let found = measured.took.and_then(|took| {
            kernel.learn(Sample {
                took,
                sharing: launch.sharing,
                overlapped: launch.overlapped,
                disturbed: measured.disturbed,
                held,
            })
        });
        if let (Some(found), Rule::Limited(rate)) = (found, self.words().rule()) {
            self.bucket().settle(rate, launch.charged, found);
            // The card was kept busy by a wait for another one of the container.
            let took = measured.took.filter(|_| held > 0 && launch.sharing <= 1);
            let waited = took.map_or(0, |took| took.saturating_sub(found));
            self.bucket().pass(waited);
            let more = found.wrapping_sub(launch.charged).wrapping_add(waited);
            self.compute().busy.fetch_add(more, Relaxed);
        }
    }

    /// Nanoseconds for which launches of the container on its other cards waited in all.
    fn held(self) -> u64 {
        let others = (0..self.process.pace.0.len()).filter(|card| *card != self.card);
        let each = others.map(|card| self.process.seat.compute(card).waited.load(Relaxed));
        each.fold(0, u64::wrapping_add)
    }
}
