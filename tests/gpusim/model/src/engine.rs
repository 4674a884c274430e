//! A card's time: what each process queued runs in its own order, and processes that have work take
//! turns of one slice each; clients of one MPS server have theirs together. Computed to the
//! nanosecond for moments that are past, by whoever asks. Fed by a clock that the caller reads;
//! must not sleep.

use std::sync::atomic::Ordering::Relaxed;

use crate::member::Member;
use crate::shared::{BUCKET, BUCKETS, Card, Holding, QUEUE};

/// The queue is full; the caller waits and tries again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueFull;

/// How far work has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It was done at this moment; 0: so long ago that it is forgotten.
    Done(u64),
    /// It needs at least so many nanoseconds more.
    Running(u64),
}

impl Member {
    /// Queues work that takes `work` nanoseconds; gives its number, counted from 1.
    pub fn push(&self, card: usize, work: u64, (now, slice): (u64, u64)) -> Result<u64, QueueFull> {
        self.locked(card, |record| {
            self.advance(card, record, now, slice);
            let holding = self.holding(card);
            let pushed = holding.pushed.load(Relaxed);
            if pushed - holding.done.load(Relaxed) >= QUEUE as u64 {
                return Err(QueueFull);
            }
            let item = &holding.queue[place(pushed)];
            item.work.store(work, Relaxed);
            item.finish.store(0, Relaxed);
            holding.pushed.store(pushed + 1, Relaxed);
            Ok(pushed + 1)
        })
    }

    /// How far the work of a number has come by now; 0 is always done.
    pub fn progress(&self, card: usize, number: u64, (now, slice): (u64, u64)) -> Progress {
        self.locked(card, |record| {
            self.advance(card, record, now, slice);
            let holding = self.holding(card);
            let (pushed, done) = (holding.pushed.load(Relaxed), holding.done.load(Relaxed));
            if number <= done {
                let kept = number > 0 && number + QUEUE as u64 > pushed;
                let item = &holding.queue[place(number.saturating_sub(1))];
                return Progress::Done(if kept { item.finish.load(Relaxed) } else { 0 });
            }
            let ahead = (done..number).map(|at| holding.queue[place(at)].work.load(Relaxed));
            let left: u64 = ahead.sum();
            Progress::Running(left.saturating_sub(holding.progress.load(Relaxed)))
        })
    }

    /// The number of the newest work, and the oldest number whose end is not forgotten when one
    /// more is queued.
    pub fn newest(&self, card: usize) -> (u64, u64) {
        let pushed = self.holding(card).pushed.load(Relaxed);
        (pushed, (pushed + 2).saturating_sub(QUEUE as u64))
    }

    /// Everything that this process queued is done, as far as was computed.
    pub fn is_idle(&self, card: usize) -> bool {
        let holding = self.holding(card);
        holding.pushed.load(Relaxed) == holding.done.load(Relaxed)
    }

    /// Computes a card's time up to now.
    pub fn settle(&self, card: usize, (now, slice): (u64, u64)) {
        self.locked(card, |record| self.advance(card, record, now, slice));
    }

    /// Lets the card run until `now`. Needs its lock.
    fn advance(&self, card: usize, record: &Card, now: u64, slice: u64) {
        let start = record.now.load(Relaxed);
        if now <= start {
            return;
        }
        let with_work = || {
            let all = self.shared().claimed();
            all.filter(|(_, slot)| has_work(&slot.holdings[card]))
        };
        // The dead have no turn. Asking the kernel costs, so not at every look.
        let others = with_work().any(|(slot, _)| slot != self.slot());
        if others && now / BUCKET != start / BUCKET {
            self.bury(card, record);
        }
        let mut workers: Vec<Worker> = with_work()
            .map(|(number, slot)| Worker {
                number: number as u64 + 1,
                server: slot.mps.load(Relaxed),
                percent: share(slot.percent.load(Relaxed)),
                holding: &slot.holdings[card],
            })
            .collect();
        let mut turn = Turn {
            time: start,
            runs: record.runs.load(Relaxed),
            slice_end: record.slice_end.load(Relaxed),
        };
        while turn.time < now && !workers.is_empty() {
            turn.step(&workers, now, slice);
            workers.retain(|worker| has_work(worker.holding));
        }
        record.runs.store(turn.runs, Relaxed);
        record.slice_end.store(turn.slice_end, Relaxed);
        record.now.store(now, Relaxed);
    }
}

/// A process that has work.
struct Worker<'a> {
    /// Its slot, counted from 1.
    number: u64,
    /// The MPS server through which it runs; 0: none.
    server: u64,
    /// Percent of the card that it may fill.
    percent: u64,
    holding: &'a Holding,
}

impl Worker<'_> {
    /// They run at once: clients of one MPS server.
    fn beside(&self, other: &Self) -> bool {
        self.number == other.number || (self.server != 0 && self.server == other.server)
    }

    fn left(&self) -> u64 {
        let done = self.holding.done.load(Relaxed);
        let work = self.holding.queue[place(done)].work.load(Relaxed);
        work.saturating_sub(self.holding.progress.load(Relaxed))
    }

    /// It ran from a moment on and got `part` of its first work done.
    fn run(&self, (from, until): (u64, u64), part: u64) {
        let holding = self.holding;
        note(holding, from, until);
        let done = holding.done.load(Relaxed);
        if part == self.left() {
            holding.queue[place(done)].finish.store(until, Relaxed);
            holding.progress.store(0, Relaxed);
            holding.done.store(done + 1, Relaxed);
        } else {
            holding.progress.fetch_add(part, Relaxed);
        }
    }
}

/// Whose turn it is.
struct Turn {
    time: u64,
    /// The first of those whose turn it is.
    runs: u64,
    slice_end: u64,
}

impl Turn {
    /// One stretch of one process, or of the clients of one MPS server: to the end of somebody's
    /// work, of the slice, or of the time.
    fn step(&mut self, workers: &[Worker], now: u64, slice: u64) {
        let first = |worker: &&Worker| {
            !workers
                .iter()
                .any(|w| w.number < worker.number && w.beside(worker))
        };
        let turns: Vec<&Worker> = workers.iter().filter(first).collect();
        let alone = turns.len() == 1;
        let known = turns.iter().find(|worker| worker.number == self.runs);
        let in_slice = self.time < self.slice_end;
        let runner = match known {
            Some(known) if in_slice || alone => known,
            _ => {
                let later = turns.iter().find(|worker| worker.number > self.runs);
                self.slice_end = self.time + slice.max(1);
                later.unwrap_or(&turns[0])
            }
        };
        self.runs = runner.number;
        let until = if alone { now } else { now.min(self.slice_end) };
        let most = until.saturating_sub(self.time);
        let together: Vec<&Worker> = workers.iter().filter(|one| one.beside(runner)).collect();
        // Those that want more than the card get it in proportion.
        let wanted: u64 = together.iter().map(|worker| worker.percent).sum();
        let whole = wanted.max(100);
        let needs = |worker: &Worker| (worker.left() * whole).div_ceil(worker.percent);
        let stretch = together.iter().map(|worker| needs(worker)).min();
        let stretch = stretch.unwrap_or(most).min(most);
        let span = (self.time, self.time + stretch);
        for worker in together {
            let part = (stretch * worker.percent / whole).min(worker.left());
            let ends = needs(worker) <= stretch;
            worker.run(span, if ends { worker.left() } else { part });
        }
        self.time += stretch;
    }
}

/// What a slot says of its share; 0 is all.
fn share(percent: u64) -> u64 {
    match percent {
        1..=100 => percent,
        _ => 100,
    }
}

fn has_work(holding: &Holding) -> bool {
    holding.done.load(Relaxed) < holding.pushed.load(Relaxed)
}

fn place(number: u64) -> usize {
    usize::try_from(number % QUEUE as u64).expect("less than QUEUE")
}

/// Counts a busy stretch, as a sum and in the history.
fn note(holding: &Holding, start: u64, end: u64) {
    holding.busy.fetch_add(end - start, Relaxed);
    let mut time = start.max(end.saturating_sub(BUCKET * (BUCKETS as u64 - 1)));
    while time < end {
        let bucket = time / BUCKET;
        let next = end.min((bucket + 1) * BUCKET);
        let entry = &holding.history[slot_of(bucket)];
        let (known, before) = split(entry.load(Relaxed));
        let kept = if known == bucket & 0xffff_ffff {
            before
        } else {
            0
        };
        entry.store((bucket << 32) | (kept + next - time), Relaxed);
        time = next;
    }
}

fn slot_of(bucket: u64) -> usize {
    usize::try_from(bucket % BUCKETS as u64).expect("less than BUCKETS")
}

fn split(entry: u64) -> (u64, u64) {
    (entry >> 32, entry & 0xffff_ffff)
}

/// Nanoseconds that a process was busy in the buckets between two moments.
pub(crate) fn busy_between(holding: &Holding, start: u64, end: u64) -> u64 {
    let buckets = start / BUCKET..end / BUCKET;
    let parts = buckets.map(|bucket| {
        let (known, busy) = split(holding.history[slot_of(bucket)].load(Relaxed));
        if known == bucket & 0xffff_ffff {
            busy
        } else {
            0
        }
    });
    parts.sum()
}
