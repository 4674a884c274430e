//! This process's work on its GPUs: queueing it, and marks that record when it was done. `Member`
//! computes a GPU's time.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use aliquot_gpusim_model::clock;
use aliquot_gpusim_model::engine::{self, Dependencies, Moment, Progress};
use aliquot_gpusim_model::model::MAX_GPUS;
use parking_lot::Mutex;

use crate::driver::Driver;
use crate::wait::pause;

/// Marks that still wait, by GPU and by the number of the work.
pub(crate) struct Timeline([Mutex<BTreeMap<u64, Vec<Weak<Mark>>>>; MAX_GPUS]);

impl Default for Timeline {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Mutex::default()))
    }
}

/// The number of work that is never done.
pub(crate) const NEVER: u64 = u64::MAX;

/// A point in the work of a GPU.
pub(crate) struct Mark {
    pub(crate) gpu_index: usize,
    number: u64,
    /// When it was set.
    set: u64,
    /// Nanoseconds that the GPU takes to pass it.
    latency: u64,
    /// When the GPU passes it; 0: not known yet.
    passed: AtomicU64,
}

impl Mark {
    /// The work that comes before it.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The GPU passes it some time after the work before it.
    pub(crate) fn is_late(&self) -> bool {
        self.latency > 0
    }
}

impl Driver {
    fn moment(&self, gpu_index: usize) -> Moment {
        self.on_gpu(gpu_index, engine::moment)
    }

    /// Whether work in different streams runs at the same time.
    fn overlaps(&self, gpu_index: usize) -> bool {
        self.on_gpu(gpu_index, |gpu| gpu.overlap != 0)
    }

    /// Spends the CPU time that a launch takes.
    pub(crate) fn spend_launch_time(&self, gpu_index: usize) {
        let time = self.on_gpu(gpu_index, |gpu| u64::from(gpu.launch_us) * 1000);
        if time == 0 {
            return;
        }
        let end = clock() + time;
        while clock() < end {
            std::hint::spin_loop();
        }
    }

    /// Queues work of so many nanoseconds after the work of a number; waits while the queue is full,
    /// as launches do.
    pub(crate) fn queue(&self, gpu_index: usize, work: u64, behind: u64) -> u64 {
        if work == 0 && self.member().is_idle(gpu_index) {
            return self.member().newest(gpu_index).0;
        }
        self.push(gpu_index, work, &[behind])
    }

    /// The number of work that is done when the work of all these numbers is.
    pub(crate) fn join(&self, gpu_index: usize, numbers: &[u64]) -> u64 {
        let newest = numbers.iter().copied().max().unwrap_or(0);
        if newest == NEVER || !self.overlaps(gpu_index) {
            return newest;
        }
        let done = self.member().all_done_to(gpu_index);
        let mut undone: Vec<u64> = numbers.iter().copied().filter(|one| *one > done).collect();
        undone.sort_unstable();
        undone.dedup();
        match undone[..] {
            [] => newest,
            [one] => one,
            _ => self.push(gpu_index, 0, &undone),
        }
    }

    fn push(&self, gpu_index: usize, work: u64, behind: &[u64]) -> u64 {
        self.resolve_marks(gpu_index, self.member().newest(gpu_index).1);
        let after = if self.overlaps(gpu_index) {
            Dependencies::Numbers(behind)
        } else {
            Dependencies::All
        };
        loop {
            let moment = self.moment(gpu_index);
            let queued = self.member().push(gpu_index, work, after, moment);
            if let Ok(number) = queued {
                return number;
            }
            // The queue is full.
            let (newest, _) = self.member().newest(gpu_index);
            self.wait_until_all_done(gpu_index, (newest + 1).saturating_sub(200));
        }
    }

    pub(crate) fn is_done(&self, gpu_index: usize, number: u64) -> bool {
        if number == NEVER {
            return false;
        }
        if number <= self.member().all_done_to(gpu_index) {
            return true;
        }
        let progress = self
            .member()
            .progress(gpu_index, number, self.moment(gpu_index));
        matches!(progress, Progress::Done(_))
    }

    /// Waits until the work of a number is done.
    pub(crate) fn wait_until_done(&self, gpu_index: usize, number: u64) {
        if number == NEVER {
            loop {
                pause(u64::MAX);
            }
        }
        if number == 0 || self.member().is_idle(gpu_index) {
            return;
        }
        while let Progress::Running(left) =
            self.member()
                .progress(gpu_index, number, self.moment(gpu_index))
        {
            pause(left);
        }
    }

    /// Waits until all work up to a number is done.
    fn wait_until_all_done(&self, gpu_index: usize, number: u64) {
        // The newest first, which is mostly the last.
        for one in (self.member().all_done_to(gpu_index) + 1..=number).rev() {
            self.wait_until_done(gpu_index, one);
        }
    }

    /// Waits until all work of this process on a GPU is done.
    pub(crate) fn wait_until_idle(&self, gpu_index: usize) {
        self.wait_until_all_done(gpu_index, self.member().newest(gpu_index).0);
    }

    /// A mark after the work of a number, which the GPU passes at once.
    pub(crate) fn mark(&self, gpu_index: usize, number: u64) -> Arc<Mark> {
        self.set_mark(gpu_index, number, 0)
    }

    /// As `mark`, for an event: the GPU passes it some time later, and what follows does not wait
    /// for that.
    pub(crate) fn event_mark(&self, gpu_index: usize, number: u64) -> Arc<Mark> {
        let latency = self.on_gpu(gpu_index, |gpu| u64::from(gpu.mark_latency_us) * 1000);
        self.set_mark(gpu_index, number, latency)
    }

    fn set_mark(&self, gpu_index: usize, number: u64, latency: u64) -> Arc<Mark> {
        let mark = Arc::new(Mark {
            gpu_index,
            number,
            set: clock(),
            latency,
            passed: AtomicU64::new(0),
        });
        if self.passing(&mark).is_none() {
            let mut waiting = self.timeline.0[gpu_index].lock();
            waiting
                .entry(number)
                .or_default()
                .push(Arc::downgrade(&mark));
        }
        mark
    }

    /// When the GPU passed a mark; `None`: it has not.
    pub(crate) fn reached(&self, mark: &Mark) -> Option<u64> {
        let passed = self.passing(mark)?;
        (!mark.is_late() || passed <= clock()).then_some(passed)
    }

    /// When the GPU passes a mark; `None`: the work before it is not done.
    fn passing(&self, mark: &Mark) -> Option<u64> {
        let known = mark.passed.load(Relaxed);
        if known > 0 {
            return Some(known);
        }
        if mark.number == NEVER {
            return None;
        }
        match self
            .member()
            .progress(mark.gpu_index, mark.number, self.moment(mark.gpu_index))
        {
            Progress::Done(when) => {
                let passed = when.max(mark.set) + mark.latency;
                mark.passed.store(passed, Relaxed);
                Some(passed)
            }
            Progress::Running(_) => None,
        }
    }

    /// Waits until the GPU passed a mark.
    pub(crate) fn wait_for(&self, mark: &Mark) {
        self.resolve(mark);
        let left = || mark.passed.load(Relaxed).saturating_sub(clock());
        while mark.is_late() && left() > 0 {
            pause(left());
        }
    }

    /// Waits until it is known when the GPU passes a mark.
    fn resolve(&self, mark: &Mark) {
        if mark.passed.load(Relaxed) == 0 {
            self.wait_until_done(mark.gpu_index, mark.number);
            self.passing(mark);
        }
    }

    /// Resolves the times of marks before the GPU forgets them.
    fn resolve_marks(&self, gpu_index: usize, forgotten: u64) {
        let mut waiting = self.timeline.0[gpu_index].lock();
        while let Some(entry) = waiting
            .first_entry()
            .filter(|entry| *entry.key() <= forgotten)
        {
            for mark in entry.remove().iter().filter_map(Weak::upgrade) {
                self.resolve(&mark);
            }
        }
    }
}
