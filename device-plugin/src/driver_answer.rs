//! Waits for a call of the driver, which has no deadline of its own, and reports when it is late.

use std::pin::pin;
use std::time::Duration;

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// A call that takes longer is reported.
const LATE: Duration = Duration::from_secs(30);
const REASON: &str = "the NVIDIA driver does not answer: the health of the GPUs is unknown";

/// The result of `call`. `report` gets the reason while the driver is late, and `None` once it has
/// answered. Returns `None` when `stop` is cancelled first.
pub(crate) async fn await_driver<T>(
    call: impl Future<Output = T>,
    report: &impl Fn(Option<String>),
    stop: &CancellationToken,
) -> Option<T> {
    let mut call = pin!(call);
    let mut late = false;
    loop {
        let waited = tokio::select! {
            () = stop.cancelled() => return None,
            waited = timeout(LATE, &mut call) => waited,
        };
        if let Ok(found) = waited {
            if late {
                tracing::warn!("the driver answers again");
                report(None);
            }
            return Some(found);
        }
        tracing::error!("{REASON}");
        report(Some(REASON.to_owned()));
        late = true;
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use parking_lot::Mutex;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn reports_driver_that_does_not_answer() {
        let check = async |takes: Duration, expected: &[bool]| {
            let reported = Mutex::new(Vec::new());
            let report = |reason: Option<String>| reported.lock().push(reason.is_some());
            let stop = CancellationToken::new();
            let call = timeout(takes, pending::<()>());
            let came = await_driver(call, &report, &stop).await;
            assert!(came.is_some(), "{takes:?}");
            assert_eq!(*reported.lock(), expected, "{takes:?}");
        };
        check(LATE / 2, &[]).await;
        check(LATE * 3 / 2, &[true, false]).await;
        check(LATE * 5 / 2, &[true, true, false]).await;
        let stop = CancellationToken::new();
        stop.cancel();
        assert_eq!(await_driver(pending::<()>(), &|_| {}, &stop).await, None);
    }
}
