//! Waits for a condition with a deadline: the only place that sleeps. An error of a probe means
//! "not yet".

use std::future::Future;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};

/// For what a healthy cluster does in seconds. It only bounds the wait for a success, so it is far
/// more than a slow machine with two processors needs that runs every test.
pub const PATIENCE: Duration = Duration::from_mins(4);
/// Pause between two probes.
const PAUSE: Duration = Duration::from_millis(50);

/// An error that ends [`eventually`] at once: waiting longer cannot help.
#[derive(Debug)]
struct GiveUp(String);

impl std::fmt::Display for GiveUp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for GiveUp {}

/// Makes the error by which a probe reports that waiting longer cannot help.
pub fn give_up(why: impl Into<String>) -> anyhow::Error {
    anyhow::Error::new(GiveUp(why.into()))
}

/// Calls `probe` until it yields `Some`, at most `deadline` long.
/// `Ok(None)` and `Err` both mean "not yet"; the last error is what the final
/// error reports as seen, so let probes `bail!` with what they saw.
///
/// # Errors
/// The deadline passed (names `what` and the last observation), or the probe gave up.
pub async fn eventually<T, F, Fut>(deadline: Duration, what: &str, mut probe: F) -> Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<Option<T>>>,
{
    let end = Instant::now() + deadline;
    let mut seen = String::from("nothing yet");
    loop {
        let left = end.saturating_duration_since(Instant::now());
        match tokio::time::timeout(left, probe()).await {
            Ok(Ok(Some(value))) => return Ok(value),
            Ok(Ok(None)) | Err(_) => {}
            Ok(Err(error)) if error.is::<GiveUp>() => {
                return Err(anyhow!("waited for {what}: {error}"));
            }
            Ok(Err(error)) => seen = format!("{error:#}"),
        }
        // The clock is read here, because a probe that never waits never times out.
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            bail!("waited {deadline:?} for {what}; last seen: {seen}");
        }
        tokio::time::sleep(PAUSE.min(left)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn deadline_also_ends_a_probe_that_never_waits() {
        let deadline = Duration::from_millis(1);
        let nothing = eventually(deadline, "it", || async { bail!("seen this") });
        let error: Result<()> = nothing.await;
        let text = error.map_err(|e| e.to_string()).expect_err("no end");
        assert_eq!(text, "waited 1ms for it; last seen: seen this");
    }
}
