//! Waits for a condition with a deadline, or by the clock: the only place that sleeps.

use std::future::Future;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};

/// For what a healthy cluster does in seconds. It only bounds the wait for a success, so it is far
/// more than a slow machine with two processors needs that runs every test.
pub const PATIENCE: Duration = Duration::from_mins(4);
/// Pause between two probes.
const PAUSE: Duration = Duration::from_millis(50);

/// Why a probe has no value. An error of anything that a probe calls is [`Unmet::Error`], unless
/// the probe says with [`OrNotYet`] that it is to be expected for a while.
#[derive(Debug)]
pub enum Unmet {
    /// What it saw instead: [`eventually`] asks again.
    NotYet(String),
    /// Waiting longer cannot help.
    Error(anyhow::Error),
}

impl<E> From<E> for Unmet
where
    anyhow::Error: From<E>,
{
    fn from(error: E) -> Self {
        Self::Error(error.into())
    }
}

/// Makes what a probe reports when waiting longer cannot help.
pub fn give_up(why: impl Into<String>) -> Unmet {
    Unmet::Error(anyhow!(why.into()))
}

/// Errors that are to be expected until a condition holds.
pub trait OrNotYet<T> {
    /// The error is what the probe saw.
    ///
    /// # Errors
    /// [`Unmet::NotYet`].
    fn or_not_yet(self) -> Result<T, Unmet>;
}

impl<T, E> OrNotYet<T> for Result<T, E>
where
    anyhow::Error: From<E>,
{
    fn or_not_yet(self) -> Result<T, Unmet> {
        self.map_err(|error| Unmet::NotYet(format!("{:#}", anyhow::Error::from(error))))
    }
}

/// Ends a probe with what it saw, unless this holds: `until!(found == 3, "{found} pods")`.
#[macro_export]
macro_rules! until {
    ($holds:expr, $($seen:tt)+) => {
        if !$holds {
            $crate::not_yet!($($seen)+);
        }
    };
}

/// Ends a probe with what it saw.
#[macro_export]
macro_rules! not_yet {
    ($($seen:tt)+) => {
        return Err($crate::wait::Unmet::NotYet(format!($($seen)+)))
    };
}

/// Calls `probe` until it yields `Some`, at most `deadline` long. `Ok(None)` and [`Unmet::NotYet`]
/// mean that it is asked again.
///
/// # Errors
/// The deadline passed (names `what` and what was seen last), or the probe failed.
pub async fn eventually<T, F, Fut>(deadline: Duration, what: &str, mut probe: F) -> Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<Option<T>, Unmet>>,
{
    let end = Instant::now() + deadline;
    let mut seen = String::from("nothing yet");
    loop {
        let left = end.saturating_duration_since(Instant::now());
        match tokio::time::timeout(left, probe()).await {
            Ok(Ok(Some(value))) => return Ok(value),
            Ok(Ok(None)) | Err(_) => {}
            Ok(Err(Unmet::NotYet(found))) => seen = found,
            Ok(Err(Unmet::Error(error))) => return Err(error.context(format!("wait for {what}"))),
        }
        // The clock is read here, because a probe that never waits never times out.
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            bail!("waited {deadline:?} for {what}; last seen: {seen}");
        }
        tokio::time::sleep(PAUSE.min(left)).await;
    }
}

/// Calls `check` again and again for this long, by the clock: no event reports that something did
/// not happen.
///
/// # Errors
/// The first of the check.
pub async fn throughout<F, Fut>(time: Duration, mut check: F) -> Result<()>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<()>>,
{
    let end = Instant::now() + time;
    loop {
        check().await?;
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        tokio::time::sleep(PAUSE.min(left)).await;
    }
}

/// Lets this time pass, by the clock, where it is the passing of time that is tested.
pub async fn sleep(time: Duration) {
    tokio::time::sleep(time).await;
}
