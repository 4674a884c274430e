//! Tasks that the agent cannot do without: when one ends before it was told to, by a panic or
//! otherwise, that is said and the whole agent ends, so that it is started anew.
//!
//! Fed by: the agent's tasks. Must not: let a node go on half served.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt as _;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Starts such tasks.
pub(crate) struct Guard {
    tasks: TaskTracker,
    stop: CancellationToken,
    ended: Arc<Mutex<Option<&'static str>>>,
}

impl Guard {
    /// Among `tasks`, until `stop`.
    pub(crate) fn new(tasks: &TaskTracker, stop: &CancellationToken) -> Self {
        Self {
            tasks: tasks.clone(),
            stop: stop.clone(),
            ended: Arc::default(),
        }
    }

    /// Starts a task, under a name for logs.
    pub(crate) fn spawn(
        &self,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let (stop, ended) = (self.stop.clone(), Arc::clone(&self.ended));
        self.tasks.spawn(async move {
            // What it shared is not used any more: the agent ends.
            let panicked = AssertUnwindSafe(task).catch_unwind().await.is_err();
            if !stop.is_cancelled() {
                tracing::error!(
                    name,
                    panicked,
                    "a part of the agent ended; so does the agent"
                );
                ended.lock().get_or_insert(name);
                stop.cancel();
            }
        });
    }

    /// The first that ended before it was told to.
    pub(crate) fn ended(&self) -> Option<&'static str> {
        *self.ended.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_of_the_follower_was_silent() {
        let check = async |task: futures::future::BoxFuture<'static, ()>, expected| {
            let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
            let guard = Guard::new(&tasks, &stop);
            let until = stop.clone();
            guard.spawn("waits", async move { until.cancelled().await });
            guard.spawn("asked", task);
            tasks.close();
            let told = tokio::time::timeout(std::time::Duration::from_secs(30), tasks.wait());
            let told = told.await.is_ok();
            assert_eq!((told, guard.ended()), (true, expected));
        };
        check(Box::pin(async { panic!("a bug") }), Some("asked")).await;
        check(Box::pin(async {}), Some("asked")).await;
    }
}
