//! Time on a GPU. Processes with work run in time slices, one after the other; the clients of one MPS
//! server share a slice, and a change to another process may take time in which nothing runs. The
//! queue of a process runs in order, or each of its works after those that it depends on. Progress is
//! computed to the nanosecond for moments in the past, by whichever process asks: nothing here
//! sleeps.

use std::sync::atomic::Ordering::Relaxed;

use crate::clock;
use crate::member::Member;
use crate::model::Gpu;
use crate::shared::{BUCKET, BUCKETS, GpuRecord, QUEUE, UsageCounters, WorkItem};

/// Most works of one process that run at the same time.
const CONCURRENT: usize = 4;
/// Nanoseconds of a time slice.
const SLICE: u64 = 2_000_000;

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

/// Now, and what a change to another process, or to another MPS server's clients, takes; both in
/// nanoseconds.
pub type Moment = (u64, u64);

/// The moment that it is now, on a GPU.
#[must_use]
pub fn moment(gpu: &Gpu) -> Moment {
    (clock(), u64::from(gpu.switch_us) * 1000)
}

/// The work of the same process after which queued work may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dependencies<'a> {
    /// All that was queued before.
    All,
    /// The work of these numbers; of more than eight that are not done, all that was queued before.
    Numbers(&'a [u64]),
}

impl Member {
    /// Queues work that takes `work` nanoseconds; returns its number, counted from 1.
    pub fn push(
        &self,
        gpu_index: usize,
        work: u64,
        after: Dependencies,
        moment: Moment,
    ) -> Result<u64, QueueFull> {
        self.locked(gpu_index, |record| {
            self.advance(gpu_index, record, moment);
            let counters = self.counters(gpu_index);
            let pushed = counters.pushed.load(Relaxed);
            if pushed - counters.done.load(Relaxed) >= QUEUE as u64 {
                return Err(QueueFull);
            }
            let number = pushed + 1;
            let after = encode(counters, number, after);
            let item = item(counters, number);
            item.left.store(work, Relaxed);
            item.finish.store(0, Relaxed);
            item.after.store(after, Relaxed);
            counters.pushed.store(number, Relaxed);
            Ok(number)
        })
    }

    /// The progress of the work of a number by now; 0 is always done.
    pub fn progress(&self, gpu_index: usize, number: u64, moment: Moment) -> Progress {
        self.locked(gpu_index, |record| {
            self.advance(gpu_index, record, moment);
            let counters = self.counters(gpu_index);
            if !is_done(counters, number) {
                return Progress::Running(time_left(counters, number));
            }
            let retained = number > 0 && number + QUEUE as u64 > counters.pushed.load(Relaxed);
            Progress::Done(if retained {
                item(counters, number).finish.load(Relaxed)
            } else {
                0
            })
        })
    }

    /// The number of the newest work, and the oldest number whose end is not forgotten when one
    /// more is queued.
    pub fn newest(&self, gpu_index: usize) -> (u64, u64) {
        let pushed = self.counters(gpu_index).pushed.load(Relaxed);
        (pushed, (pushed + 2).saturating_sub(QUEUE as u64))
    }

    /// The number up to which all work is done, as far as was computed.
    pub fn all_done_to(&self, gpu_index: usize) -> u64 {
        self.counters(gpu_index).done.load(Relaxed)
    }

    /// Whether all queued work of this process is done, as far as was computed.
    pub fn is_idle(&self, gpu_index: usize) -> bool {
        !has_work(self.counters(gpu_index))
    }

    /// Advances a GPU's simulated time to now.
    pub fn settle(&self, gpu_index: usize, moment: Moment) {
        self.locked(gpu_index, |record| {
            self.advance(gpu_index, record, moment);
        });
    }

    /// Advances the GPU to `now`. Needs its lock.
    fn advance(&self, gpu_index: usize, record: &GpuRecord, (now, switch): Moment) {
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
                owner: match slot.mps.load(Relaxed) {
                    0 => (slot.generation.load(Relaxed) << 16) | (number as u64 + 1),
                    server => server,
                },
                percent: share(slot.percent.load(Relaxed)),
                counters: &slot.counters[gpu_index],
            })
            .collect();
        let mut schedule = RoundRobin {
            time: start,
            owner: record.slice_owner.load(Relaxed),
            switch_end: record.switch_end.load(Relaxed),
            slice_end: record.slice_end.load(Relaxed),
        };
        while schedule.time < now && !workers.is_empty() {
            schedule.step(&workers, now, switch);
            workers.retain(|worker| has_work(worker.counters));
        }
        record.slice_owner.store(schedule.owner, Relaxed);
        record.switch_end.store(schedule.switch_end, Relaxed);
        record.slice_end.store(schedule.slice_end, Relaxed);
        record.now.store(now, Relaxed);
    }
}

/// A process that has work.
struct Worker<'a> {
    /// Whose time slices it runs in: its own, or those of its MPS server (`Member::token`).
    owner: u64,
    /// Percent of the GPU that it may fill.
    percent: u64,
    counters: &'a UsageCounters,
}

impl Worker<'_> {
    /// Nanoseconds until work is done of which so many are left, if all that runs asks for `whole`
    /// percent of the GPU.
    fn needs(&self, left: u64, whole: u64) -> u64 {
        (left * whole).div_ceil(self.percent)
    }

    /// Runs the work of these numbers for a time span, in which all that runs asks for `whole`
    /// percent of the GPU.
    fn run(&self, numbers: &[u64], (from, until): (u64, u64), whole: u64) {
        let counters = self.counters;
        record_busy(counters, from, until);
        for number in numbers {
            let item = item(counters, *number);
            let left = item.left.load(Relaxed);
            if self.needs(left, whole) <= until - from {
                item.finish.store(until.max(1), Relaxed);
            } else {
                let part = (until - from) * self.percent / whole;
                item.left.store(left.saturating_sub(part), Relaxed);
            }
        }
        let pushed = counters.pushed.load(Relaxed);
        let mut done = counters.done.load(Relaxed);
        while done < pushed && item(counters, done + 1).finish.load(Relaxed) > 0 {
            done += 1;
        }
        counters.done.store(done, Relaxed);
    }
}

/// The time-slicing schedule.
struct RoundRobin {
    time: u64,
    /// Whose slice it is (`Worker::owner`); 0: nobody ran yet.
    owner: u64,
    /// When the GPU has changed to the owner.
    switch_end: u64,
    slice_end: u64,
}

impl RoundRobin {
    /// One stretch of one process, or of the clients of one MPS server: to the end of some work, of
    /// the slice, or of the time. Or the change to another.
    fn step(&mut self, workers: &[Worker], now: u64, switch: u64) {
        let alone = workers.iter().all(|one| one.owner == workers[0].owner);
        let owner_works = workers.iter().any(|one| one.owner == self.owner);
        if !owner_works || (!alone && self.time >= self.slice_end) {
            let next = next_owner(workers, self.owner);
            let changes = self.owner != 0 && next != self.owner;
            self.switch_end = self.time + if changes { switch } else { 0 };
            self.slice_end = self.switch_end + SLICE;
            self.owner = next;
        }
        if self.time < self.switch_end {
            self.time = self.switch_end.min(now);
            return;
        }
        let until = if alone { now } else { now.min(self.slice_end) };
        let most = until.saturating_sub(self.time);
        let together: Vec<(&Worker, Vec<u64>)> = workers
            .iter()
            .filter(|one| one.owner == self.owner)
            .map(|one| (one, runnable(one.counters)))
            .collect();
        // If they ask for more than the GPU, each gets a proportional part.
        let requested: u64 = together.iter().map(|(worker, _)| worker.percent).sum();
        let whole = requested.max(100);
        let ends = together.iter().flat_map(|(worker, numbers)| {
            numbers.iter().map(move |number| {
                let left = item(worker.counters, *number).left.load(Relaxed);
                worker.needs(left, whole)
            })
        });
        let stretch = ends.min().unwrap_or(most).min(most);
        let span = (self.time, self.time + stretch);
        for (worker, numbers) in together {
            worker.run(&numbers, span, whole);
        }
        self.time += stretch;
    }
}

/// Whose slice is next: by the number of the slot, in a circle.
fn next_owner(workers: &[Worker], owner: u64) -> u64 {
    let slot = |owner: u64| owner & 0xffff;
    let owners = || workers.iter().map(|worker| worker.owner);
    let later = owners().filter(|other| slot(*other) > slot(owner));
    let next = later.min_by_key(|other| slot(*other));
    next.or_else(|| owners().min_by_key(|other| slot(*other)))
        .unwrap_or(owner)
}

/// `WorkItem::after`: all work before it.
const AFTER_ALL: u64 = u64::MAX;

/// The dependencies of work that gets a number, as they are stored: the distances of up to eight
/// numbers, one in each byte, or `AFTER_ALL`.
fn encode(counters: &UsageCounters, number: u64, after: Dependencies) -> u64 {
    let Dependencies::Numbers(numbers) = after else {
        return AFTER_ALL;
    };
    let mut distances = [0; size_of::<u64>()];
    let mut count = 0;
    for other in numbers.iter().filter(|other| !is_done(counters, **other)) {
        // Numbers that are not done are fewer than QUEUE away.
        let Ok(distance) = u8::try_from(number - other) else {
            return AFTER_ALL;
        };
        if distances.contains(&distance) {
            continue;
        }
        let Some(place) = distances.get_mut(count) else {
            return AFTER_ALL;
        };
        *place = distance;
        count += 1;
    }
    u64::from_le_bytes(distances)
}

/// The numbers on which work that is not done depends, if these are not all before it.
fn dependencies(number: u64, after: u64) -> impl Iterator<Item = u64> {
    let distances = after.to_le_bytes().into_iter();
    distances
        .take_while(|distance| *distance > 0)
        .map(move |distance| number - u64::from(distance))
}

/// Numbers of the work that runs when its process does, the oldest first. Never empty while there
/// is work.
fn runnable(counters: &UsageCounters) -> Vec<u64> {
    let (done, pushed) = (counters.done.load(Relaxed), counters.pushed.load(Relaxed));
    let mut found = Vec::with_capacity(CONCURRENT);
    for number in done + 1..=pushed {
        if found.len() == CONCURRENT {
            break;
        }
        let item = item(counters, number);
        if item.finish.load(Relaxed) > 0 {
            continue;
        }
        let after = item.after.load(Relaxed);
        if after == AFTER_ALL {
            if number == done + 1 {
                found.push(number);
                continue;
            }
            // What was queued later waits too, as in a full hardware queue.
            break;
        }
        if dependencies(number, after).all(|other| is_done(counters, other)) {
            found.push(number);
        }
    }
    found
}

/// Nanoseconds that the work of a number needs at least until it is done.
fn time_left(counters: &UsageCounters, number: u64) -> u64 {
    let done = counters.done.load(Relaxed);
    let mut ends = [0; QUEUE];
    let mut latest = 0;
    for at in done + 1..=number {
        let item = item(counters, at);
        if item.finish.load(Relaxed) > 0 {
            ends[place(at)] = 0;
            continue;
        }
        let after = item.after.load(Relaxed);
        let start = if after == AFTER_ALL {
            latest
        } else {
            let of = |other| if other <= done { 0 } else { ends[place(other)] };
            dependencies(at, after).map(of).max().unwrap_or(0)
        };
        let end = start + item.left.load(Relaxed);
        ends[place(at)] = end;
        latest = latest.max(end);
    }
    ends[place(number)]
}

fn is_done(counters: &UsageCounters, number: u64) -> bool {
    number <= counters.done.load(Relaxed)
        || (number <= counters.pushed.load(Relaxed)
            && item(counters, number).finish.load(Relaxed) > 0)
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

fn item(counters: &UsageCounters, number: u64) -> &WorkItem {
    &counters.queue[place(number)]
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

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
