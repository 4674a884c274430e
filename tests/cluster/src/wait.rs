//! Waiting for a condition with a deadline: the only place that sleeps.
//! Fed by probes; an error of a probe is an observation, not an end.

use std::future::Future;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};

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

/// Makes the error by which a probe says that waiting longer cannot help.
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
            Ok(Ok(None)) => {}
            Ok(Err(error)) if error.is::<GiveUp>() => {
                return Err(anyhow!("waited for {what}: {error}"));
            }
            Ok(Err(error)) => seen = format!("{error:#}"),
            Err(_) => bail!("waited {deadline:?} for {what}; last seen: {seen}"),
        }
        tokio::time::sleep(PAUSE.min(end.saturating_duration_since(Instant::now()))).await;
    }
}
