//! A lock that needs nothing of its own: a futex word, with no memory behind it and no state in
//! the thread.
//!
//! Fed by: [`crate::ledger`], [`crate::context`], [`crate::pool`]. Must not: be held across a call
//! of the driver in which that may wait for a card: another thread may have to call for the card to
//! go on.

#[expect(
    clippy::disallowed_types,
    reason = "a word in every process of a container; parking_lot keeps a table and thread state"
)]
use std::sync::Mutex;
use std::sync::{MutexGuard, PoisonError};

/// A value that one thread at a time reaches.
#[derive(Debug, Default)]
#[expect(clippy::disallowed_types, reason = "as above")]
pub(crate) struct Lock<T>(Mutex<T>);

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Self {
        #[expect(clippy::disallowed_types, reason = "as above")]
        Self(Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
