//! What waits to be asked for, in turn, each of one context. Whoever asks has taken it out, so that no
//! driver call is made under the lock; who ends a context waits until nobody asks for what is of it.
//!
//! Fed by: [`super`]. Must not: let a context end while the driver is asked for something in it.

use std::collections::VecDeque;

use crate::ffi::Handle;
use crate::lock::Lock;

#[derive(Debug)]
pub(super) struct Queue<T>(Lock<State<T>>);

#[derive(Debug)]
struct State<T> {
    waiting: VecDeque<(Handle, T)>,
    /// Of which contexts something is asked for now.
    asked: Vec<Handle>,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self(Lock::new(State {
            waiting: VecDeque::new(),
            asked: Vec::new(),
        }))
    }
}

impl<T> Queue<T> {
    /// How many wait that are so.
    pub(super) fn count(&self, is_so: impl Fn(&T) -> bool) -> usize {
        let state = self.0.lock();
        state.waiting.iter().filter(|(_, one)| is_so(one)).count()
    }

    pub(super) fn put(&self, context: Handle, one: T) {
        self.0.lock().waiting.push_back((context, one));
    }

    /// The next one, and its context, which does not end before [`Self::asked`].
    pub(super) fn take(&self) -> Option<(Handle, T)> {
        let mut state = self.0.lock();
        let found = state.waiting.pop_front()?;
        state.asked.push(found.0);
        Some(found)
    }

    /// The driver was asked for what was taken, which waits on if it is given back.
    pub(super) fn asked(&self, context: Handle, back: Option<T>) {
        let mut state = self.0.lock();
        if let Some(place) = state.asked.iter().position(|one| *one == context) {
            state.asked.swap_remove(place);
        }
        state.waiting.extend(back.map(|one| (context, one)));
    }

    /// Takes out all that is of a context; returns when nobody asks for anything of it.
    pub(super) fn set_aside(&self, context: Handle) -> Vec<T> {
        let mut found = Vec::new();
        loop {
            let mut state = self.0.lock();
            let all = std::mem::take(&mut state.waiting);
            let (gone, left): (VecDeque<_>, _) = all.into_iter().partition(|one| one.0 == context);
            state.waiting = left;
            found.extend(gone.into_iter().map(|(_, one)| one));
            if !state.asked.contains(&context) {
                return found;
            }
            drop(state);
            // A question that does not wait for the card: microseconds.
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{RecvTimeoutError, channel};
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_context_ended_while_the_driver_was_asked_for_an_event_in_it() {
        for is_ready in [true, false] {
            let queue = Queue::default();
            for (context, one) in [(7, "a"), (8, "b"), (7, "c")] {
                queue.put(context, one);
            }
            let taken = queue.take().expect("three wait");
            let (sender, receiver) = channel();
            std::thread::scope(|scope| {
                scope.spawn(|| sender.send(queue.set_aside(7)).expect("a receiver"));
                // However late it begins, it may not return.
                let early = receiver.recv_timeout(Duration::from_millis(100));
                assert_eq!(
                    early,
                    Err(RecvTimeoutError::Timeout),
                    "the event is asked for"
                );
                queue.asked(taken.0, (!is_ready).then_some(taken.1));
                let gone = receiver
                    .recv_timeout(Duration::from_mins(1))
                    .expect("it ends");
                let expected = if is_ready { vec!["c"] } else { vec!["c", "a"] };
                assert_eq!(gone, expected);
            });
            assert_eq!(queue.set_aside(9), [""; 0]);
            assert_eq!(queue.take(), Some((8, "b")), "others' are not waited for");
            assert_eq!(queue.take(), None);
        }
    }
}
