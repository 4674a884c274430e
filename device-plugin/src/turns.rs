//! Work that blocks, in the order of asking, as much at one time as there are cores: many containers
//! that start at once would only take the cores from each other. A thread that has a turn goes on
//! with what waits, so that nothing rests while one thread wakes another.
//!
//! Fed by: [`crate::kept`]. Must not: let work that waits for somebody else, a MIG instance or an
//! MPS daemon, keep all other work waiting ([`Turns::aside`]).

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;

type Work = Box<dyn FnOnce() + Send>;

/// The turns. Clones share them.
#[derive(Clone)]
pub(crate) struct Turns(Arc<Mutex<State>>);

struct State {
    waiting: VecDeque<Work>,
    /// Threads that work.
    running: usize,
    /// So many may, and one more for each that stands aside.
    most: usize,
}

impl State {
    fn may_begin(&mut self) -> bool {
        let begins = self.running < self.most && !self.waiting.is_empty();
        self.running += usize::from(begins);
        begins
    }
}

impl Turns {
    /// So much at one time.
    pub(crate) fn new(most: usize) -> Self {
        Self(Arc::new(Mutex::new(State {
            waiting: VecDeque::new(),
            running: 0,
            most: most.max(1),
        })))
    }

    /// Does this when its turn comes; `None`: the agent is stopping.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (done_tx, done_rx) = oneshot::channel();
        let work = Box::new(move || {
            let _gone = done_tx.send(work());
        });
        self.0.lock().waiting.push_back(work);
        self.begin();
        done_rx.await.ok()
    }

    /// Waits for somebody else, while others have this turn.
    pub(crate) fn aside<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.0.lock().most += 1;
        self.begin();
        let found = wait();
        self.0.lock().most -= 1;
        found
    }

    /// One more thread, if there is work for it and it may.
    fn begin(&self) {
        if self.0.lock().may_begin() {
            let this = self.clone();
            spawn_blocking(move || this.work());
        }
    }

    fn work(&self) {
        let _running = Running(self);
        while let Some(work) = self.next() {
            work();
        }
    }

    fn next(&self) -> Option<Work> {
        let mut state = self.0.lock();
        if state.running > state.most {
            return None;
        }
        state.waiting.pop_front()
    }
}

/// A thread that works, also one that panics.
struct Running<'a>(&'a Turns);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.0.lock().running -= 1;
        // Something may have come since this thread looked.
        self.0.begin();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn on_one_cpu_a_start_that_waited_for_its_card_kept_all_others_waiting() {
        let turns = Turns::new(1);
        let (tell, told) = mpsc::channel::<()>();
        let waiting = turns.clone();
        let waits = tokio::spawn(async move {
            let own = waiting.clone();
            let work = move || own.aside(|| told.recv_timeout(DEADLINE).is_ok());
            waiting.run(work).await
        });
        for number in 0..8 {
            let found = tokio::time::timeout(DEADLINE, turns.run(move || number)).await;
            assert_eq!(found.expect("in time"), Some(number));
        }
        tell.send(()).expect("somebody waits");
        assert_eq!(waits.await.expect("it ended"), Some(true));
        assert_eq!(turns.0.lock().most, 1);
    }

    #[tokio::test]
    async fn work_comes_in_the_order_of_asking_and_outlives_a_panic() {
        let turns = Turns::new(1);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let all: Vec<_> = (0..64)
            .map(|number| {
                let seen = Arc::clone(&seen);
                let work = move || {
                    assert_ne!(number, 7, "a bug");
                    seen.lock().push(number);
                };
                turns.run(work)
            })
            .collect();
        let done = futures::future::join_all(all).await;
        assert_eq!(done.iter().filter(|done| done.is_none()).count(), 1);
        let expected: Vec<i32> = (0..64).filter(|number| *number != 7).collect();
        assert_eq!(*seen.lock(), expected);
    }
}
