//! Time on a GPU. Each process's queue runs in order, and processes with work run in time slices,
//! one after the other; the clients of one MPS server share a slice. Progress is computed to the
//! nanosecond for moments in the past, by whichever process asks: nothing here sleeps.

use std::sync::atomic::Ordering::Relaxed;

use crate::member::Member;
use crate::shared::{BUCKET, BUCKETS, GpuRecord, QUEUE, UsageCounters};

/// The queue is full; the caller waits and tries again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueFull;

/// The progress of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It was done at this moment; 0: so long ago that it is forgotten.
    Done(u64),
    /// It needs at least so many nanoseconds more.
    Running(u64),
}

impl Member {
    /// Queues work that takes `work` nanoseconds; returns its number, counted from 1.
    pub fn push(
        &self,
        gpu_index: usize,
        work: u64,
        (now, slice): (u64, u64),
    ) -> Result<u64, QueueFull> {
        self.locked(gpu_index, |record| {
            self.advance(gpu_index, record, now, slice);
            let counters = self.counters(gpu_index);
            let pushed = counters.pushed.load(Relaxed);
            if pushed - counters.done.load(Relaxed) >= QUEUE as u64 {
                return Err(QueueFull);
            }
            let item = &counters.queue[place(pushed)];
            item.work.store(work, Relaxed);
            item.finish.store(0, Relaxed);
            counters.pushed.store(pushed + 1, Relaxed);
            Ok(pushed + 1)
        })
    }

    /// The progress of the work of a number by now; 0 is always done.
    pub fn progress(&self, gpu_index: usize, number: u64, (now, slice): (u64, u64)) -> Progress {
        self.locked(gpu_index, |record| {
            self.advance(gpu_index, record, now, slice);
            let counters = self.counters(gpu_index);
            let (pushed, done) = (counters.pushed.load(Relaxed), counters.done.load(Relaxed));
            if number <= done {
                let retained = number > 0 && number + QUEUE as u64 > pushed;
                let item = &counters.queue[place(number.saturating_sub(1))];
                return Progress::Done(if retained {
                    item.finish.load(Relaxed)
                } else {
                    0
                });
            }
            let ahead = (done..number).map(|at| counters.queue[place(at)].work.load(Relaxed));
            let left: u64 = ahead.sum();
            Progress::Running(left.saturating_sub(counters.progress.load(Relaxed)))
        })
    }

    /// The number of the newest work, and the oldest number whose end is not forgotten when one
    /// more is queued.
    pub fn newest(&self, gpu_index: usize) -> (u64, u64) {
        let pushed = self.counters(gpu_index).pushed.load(Relaxed);
        (pushed, (pushed + 2).saturating_sub(QUEUE as u64))
    }

    /// Whether all queued work of this process is done, as far as was computed.
    pub fn is_idle(&self, gpu_index: usize) -> bool {
        let counters = self.counters(gpu_index);
        counters.pushed.load(Relaxed) == counters.done.load(Relaxed)
    }

    /// Advances a GPU's simulated time to now.
    pub fn settle(&self, gpu_index: usize, (now, slice): (u64, u64)) {
        self.locked(gpu_index, |record| {
            self.advance(gpu_index, record, now, slice);
        });
    }

    /// Advances the GPU to `now`. Needs its lock.
    fn advance(&self, gpu_index: usize, record: &GpuRecord, now: u64, slice: u64) {
        let start = record.now.load(Relaxed);
        if now <= start {
            return;
        }
        let with_work = || {
            let all = self.shared().claimed();
            all.filter(|(_, slot)| has_work(&slot.counters[gpu_index]))
        };
        // Dead processes get no slice. Asking the kernel is expensive, so not at every call.
        let others = with_work().any(|(slot, _)| slot != self.slot());
        if others && now / BUCKET != start / BUCKET {
            self.reap(gpu_index, record);
        }
        let mut workers: Vec<Worker> = with_work()
            .map(|(number, slot)| Worker {
                number: number as u64 + 1,
                server: slot.mps.load(Relaxed),
                percent: share(slot.percent.load(Relaxed)),
                counters: &slot.counters[gpu_index],
            })
            .collect();
        let mut schedule = RoundRobin {
            time: start,
            running_slot: record.runs.load(Relaxed),
            slice_end: record.slice_end.load(Relaxed),
        };
        while schedule.time < now && !workers.is_empty() {
            schedule.step(&workers, now, slice);
            workers.retain(|worker| has_work(worker.counters));
        }
        record.runs.store(schedule.running_slot, Relaxed);
        record.slice_end.store(schedule.slice_end, Relaxed);
        record.now.store(now, Relaxed);
    }
}

/// A process that has work.
struct Worker<'a> {
    /// Its slot, counted from 1.
    number: u64,
    /// The MPS server through which it runs; 0: none.
    server: u64,
    /// Percent of the GPU that it may fill.
    percent: u64,
    counters: &'a UsageCounters,
}

impl Worker<'_> {
    /// Whether both run at once: clients of one MPS server.
    fn runs_with(&self, other: &Self) -> bool {
        self.number == other.number || (self.server != 0 && self.server == other.server)
    }

    fn left(&self) -> u64 {
        let done = self.counters.done.load(Relaxed);
        let work = self.counters.queue[place(done)].work.load(Relaxed);
        work.saturating_sub(self.counters.progress.load(Relaxed))
    }

    /// Records that it ran for a time span and did `part` of its first work.
    fn run(&self, (from, until): (u64, u64), part: u64) {
        let counters = self.counters;
        record_busy(counters, from, until);
        let done = counters.done.load(Relaxed);
        if part == self.left() {
            counters.queue[place(done)].finish.store(until, Relaxed);
            counters.progress.store(0, Relaxed);
            counters.done.store(done + 1, Relaxed);
        } else {
            counters.progress.fetch_add(part, Relaxed);
        }
    }
}

/// The time-slicing schedule.
struct RoundRobin {
    time: u64,
    /// The slot that runs, counted from 1; of an MPS server's clients the first.
    running_slot: u64,
    slice_end: u64,
}

impl RoundRobin {
    /// One stretch of one process, or of the clients of one MPS server: to the end of the first
    /// work, of the slice, or of the time.
    fn step(&mut self, workers: &[Worker], now: u64, slice: u64) {
        let first = |worker: &&Worker| {
            !workers
                .iter()
                .any(|w| w.number < worker.number && w.runs_with(worker))
        };
        let candidates: Vec<&Worker> = workers.iter().filter(first).collect();
        let alone = candidates.len() == 1;
        let known = candidates
            .iter()
            .find(|worker| worker.number == self.running_slot);
        let in_slice = self.time < self.slice_end;
        let runner = match known {
            Some(known) if in_slice || alone => known,
            _ => {
                let later = candidates
                    .iter()
                    .find(|worker| worker.number > self.running_slot);
                self.slice_end = self.time + slice.max(1);
                later.unwrap_or(&candidates[0])
            }
        };
        self.running_slot = runner.number;
        let until = if alone { now } else { now.min(self.slice_end) };
        let most = until.saturating_sub(self.time);
        let together: Vec<&Worker> = workers.iter().filter(|one| one.runs_with(runner)).collect();
        // If they ask for more than the GPU, each gets a proportional part.
        let requested: u64 = together.iter().map(|worker| worker.percent).sum();
        let whole = requested.max(100);
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

/// The percentage in a slot; 0 means all.
fn share(percent: u64) -> u64 {
    match percent {
        1..=100 => percent,
        _ => 100,
    }
}

fn has_work(counters: &UsageCounters) -> bool {
    counters.done.load(Relaxed) < counters.pushed.load(Relaxed)
}

fn place(number: u64) -> usize {
    usize::try_from(number % QUEUE as u64).expect("less than QUEUE")
}

/// Records a busy time span, as a sum and in the history.
fn record_busy(counters: &UsageCounters, start: u64, end: u64) {
    counters.busy.fetch_add(end - start, Relaxed);
    let mut time = start.max(end.saturating_sub(BUCKET * (BUCKETS as u64 - 1)));
    while time < end {
        let bucket = time / BUCKET;
        let next = end.min((bucket + 1) * BUCKET);
        let entry = &counters.history[slot_of(bucket)];
        let (known, before) = split(entry.load(Relaxed));
        let retained = if known == bucket & 0xffff_ffff {
            before
        } else {
            0
        };
        entry.store((bucket << 32) | (retained + next - time), Relaxed);
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
pub(crate) fn busy_between(counters: &UsageCounters, start: u64, end: u64) -> u64 {
    let buckets = start / BUCKET..end / BUCKET;
    let parts = buckets.map(|bucket| {
        let (known, busy) = split(counters.history[slot_of(bucket)].load(Relaxed));
        if known == bucket & 0xffff_ffff {
            busy
        } else {
            0
        }
    });
    parts.sum()
}
