//! A lock that needs nothing but a futex word: no memory behind it and no state in the thread.
//!
//! It must not be held across a driver call in which the driver may wait for a device: another
//! thread may have to make a call before the device can continue.

#[expect(
    clippy::disallowed_types,
    reason = "a word in every process of a container; parking_lot keeps a table and thread state"
)]
use std::sync::Mutex;
use std::sync::{MutexGuard, PoisonError};

/// A value that one thread at a time reaches.
#[derive(Debug, Default)]
#[expect(clippy::disallowed_types, reason = "as above")]
pub(crate) struct FutexLock<T>(Mutex<T>);

impl<T> FutexLock<T> {
    pub(crate) const fn new(value: T) -> Self {
        #[expect(clippy::disallowed_types, reason = "as above")]
        Self(Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
