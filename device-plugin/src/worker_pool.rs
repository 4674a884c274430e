//! A worker pool for blocking jobs, in the order of their arrival, with as many threads as there
//! are cores: more would only compete for the cores when many containers start at once. A thread
//! goes on with the next job itself, so that none is idle while another wakes up. A job that waits
//! for a MIG instance or an MPS daemon lets another thread run meanwhile
//! ([`WorkerPool::release_while`]).

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;

type Job = Box<dyn FnOnce() + Send>;

/// The pool. Clones share it.
#[derive(Clone)]
pub(crate) struct WorkerPool(Arc<Mutex<State>>);

struct State {
    waiting: VecDeque<Job>,
    /// Threads that run jobs.
    running: usize,
    /// The most threads, plus one for each job that waits.
    limit: usize,
}

impl State {
    fn try_add_thread(&mut self) -> bool {
        let begins = self.running < self.limit && !self.waiting.is_empty();
        self.running += usize::from(begins);
        begins
    }
}

impl WorkerPool {
    /// A pool of at most `limit` threads.
    pub(crate) fn new(limit: usize) -> Self {
        Self(Arc::new(Mutex::new(State {
            waiting: VecDeque::new(),
            running: 0,
            limit: limit.max(1),
        })))
    }

    /// Runs a job; `None`: it panicked, or the agent is stopping.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (done_tx, done_rx) = oneshot::channel();
        let job = Box::new(move || {
            let _closed = done_tx.send(job());
        });
        self.0.lock().waiting.push_back(job);
        self.spawn_thread();
        done_rx.await.ok()
    }

    /// Runs `wait`, which waits for something else, while another thread may run.
    pub(crate) fn release_while<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.0.lock().limit += 1;
        self.spawn_thread();
        let found = wait();
        self.0.lock().limit -= 1;
        found
    }

    /// Starts another thread, if there is a job for it and the limit allows it.
    fn spawn_thread(&self) {
        if self.0.lock().try_add_thread() {
            let this = self.clone();
            spawn_blocking(move || this.run_jobs());
        }
    }

    fn run_jobs(&self) {
        let _running = WorkerThread(self);
        while let Some(job) = self.next() {
            job();
        }
    }

    fn next(&self) -> Option<Job> {
        let mut state = self.0.lock();
        if state.running > state.limit {
            return None;
        }
        state.waiting.pop_front()
    }
}

/// Counts a thread, also when a job panics.
struct WorkerThread<'a>(&'a WorkerPool);

impl Drop for WorkerThread<'_> {
    fn drop(&mut self) {
        self.0.0.lock().running -= 1;
        // A job may have arrived since this thread checked.
        self.0.spawn_thread();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn runs_other_jobs_while_one_waits() {
        let workers = WorkerPool::new(1);
        let (release_tx, release_rx) = mpsc::channel::<()>();
        let waiting = workers.clone();
        let waits = tokio::spawn(async move {
            let own = waiting.clone();
            let job = move || own.release_while(|| release_rx.recv_timeout(DEADLINE).is_ok());
            waiting.run(job).await
        });
        for number in 0..8 {
            let found = tokio::time::timeout(DEADLINE, workers.run(move || number)).await;
            assert_eq!(found.expect("in time"), Some(number));
        }
        release_tx.send(()).expect("the job waits");
        assert_eq!(waits.await.expect("it ended"), Some(true));
        assert_eq!(workers.0.lock().limit, 1);
    }

    #[tokio::test]
    async fn runs_jobs_in_order_and_survives_panic() {
        let workers = WorkerPool::new(1);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let all: Vec<_> = (0..64)
            .map(|number| {
                let seen = Arc::clone(&seen);
                let job = move || {
                    assert_ne!(number, 7, "a bug");
                    seen.lock().push(number);
                };
                workers.run(job)
            })
            .collect();
        let done = futures::future::join_all(all).await;
        assert_eq!(done.iter().filter(|done| done.is_none()).count(), 1);
        let expected: Vec<i32> = (0..64).filter(|number| *number != 7).collect();
        assert_eq!(*seen.lock(), expected);
    }
}
