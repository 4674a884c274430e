//! This process's work on its GPUs: queueing it, and marks that record when it was done. `Member`
//! computes a GPU's time.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use aliquot_gpusim_model::clock;
use aliquot_gpusim_model::engine::Progress;
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
    /// When the work before it was done; 0: not known yet.
    done: AtomicU64,
}

impl Mark {
    /// The work that comes before it.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

impl Driver {
    fn moment(&self, gpu_index: usize) -> (u64, u64) {
        (clock(), self.facts(gpu_index).slice)
    }

    /// Queues work of so many nanoseconds; waits while the queue is full, as launches do.
    pub(crate) fn queue(&self, gpu_index: usize, work: u64) -> u64 {
        self.count_launch(gpu_index);
        let (newest, forgotten) = self.member().newest(gpu_index);
        if work == 0 && self.member().is_idle(gpu_index) {
            return newest;
        }
        self.resolve_marks(gpu_index, forgotten);
        loop {
            match self.member().push(gpu_index, work, self.moment(gpu_index)) {
                Ok(number) => return number,
                Err(_) => self.wait_until_done(gpu_index, (newest + 1).saturating_sub(200)),
            }
        }
    }

    /// The work of a number is done.
    pub(crate) fn is_done(&self, gpu_index: usize, number: u64) -> bool {
        if number == NEVER {
            return false;
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

    /// The number of the newest work on a GPU.
    pub(crate) fn newest(&self, gpu_index: usize) -> u64 {
        self.member().newest(gpu_index).0
    }

    /// A mark after the work of a number.
    pub(crate) fn mark(&self, gpu_index: usize, number: u64) -> Arc<Mark> {
        let mark = Arc::new(Mark {
            gpu_index,
            number,
            set: clock(),
            done: AtomicU64::new(0),
        });
        if self.reached(&mark).is_none() {
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
        let known = mark.done.load(Relaxed);
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
                mark.done.store(when.max(mark.set), Relaxed);
                Some(when.max(mark.set))
            }
            Progress::Running(_) => None,
        }
    }

    /// Waits until the GPU passed a mark.
    pub(crate) fn wait_for(&self, mark: &Mark) {
        if mark.done.load(Relaxed) == 0 {
            self.wait_until_done(mark.gpu_index, mark.number);
            self.reached(mark);
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
                self.wait_for(&mark);
            }
        }
    }
}
