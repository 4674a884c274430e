//! Waiting for what the driver answers, which may never come: said, and not waited for at the end.
//!
//! Fed by: [`crate::health`]. Must not: hang unsaid.

use std::pin::pin;
use std::time::Duration;

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// An answer that takes longer is told; the driver has no deadline.
const LATE: Duration = Duration::from_secs(30);
const REASON: &str = "the driver does not answer: the cards' health is not known";

/// What a question brings. `tell` hears a reason while the answer is late, and `None` when it came
/// after all. `None`: the agent ends.
pub(crate) async fn answered<T>(
    question: impl Future<Output = T>,
    tell: &impl Fn(Option<String>),
    stop: &CancellationToken,
) -> Option<T> {
    let mut question = pin!(question);
    let mut late = false;
    loop {
        let waited = tokio::select! {
            () = stop.cancelled() => return None,
            waited = timeout(LATE, &mut question) => waited,
        };
        if let Ok(found) = waited {
            if late {
                tracing::warn!("the driver answers again");
                tell(None);
            }
            return Some(found);
        }
        tracing::error!("{REASON}");
        tell(Some(REASON.to_owned()));
        late = true;
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use parking_lot::Mutex;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_agent_whose_driver_never_answered_said_that_all_was_well() {
        let check = async |takes: Duration, expected: &[bool]| {
            let told = Mutex::new(Vec::new());
            let tell = |fault: Option<String>| told.lock().push(fault.is_some());
            let stop = CancellationToken::new();
            let question = timeout(takes, pending::<()>());
            let came = answered(question, &tell, &stop).await;
            assert!(came.is_some(), "{takes:?}");
            assert_eq!(*told.lock(), expected, "{takes:?}");
        };
        check(LATE / 2, &[]).await;
        check(LATE * 3 / 2, &[true, false]).await;
        check(LATE * 5 / 2, &[true, true, false]).await;
        let stop = CancellationToken::new();
        stop.cancel();
        assert_eq!(answered(pending::<()>(), &|_| {}, &stop).await, None);
    }
}
