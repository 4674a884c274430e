//! Supervises the tasks that the agent cannot run without. When one ends early, by a panic or
//! otherwise, that is logged and the whole agent stops: it is restarted instead of serving the node
//! only in part.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt as _;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub(crate) struct TaskSupervisor {
    tasks: TaskTracker,
    stop: CancellationToken,
    ended: Arc<Mutex<Option<&'static str>>>,
}

impl TaskSupervisor {
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
            // Shared state is not used any more: the agent stops.
            let panicked = AssertUnwindSafe(task).catch_unwind().await.is_err();
            if !stop.is_cancelled() {
                tracing::error!(
                    name,
                    panicked,
                    "a task of the agent ended unexpectedly; the agent stops"
                );
                ended.lock().get_or_insert(name);
                stop.cancel();
            }
        });
    }

    /// The first task that ended early.
    pub(crate) fn failed_task(&self) -> Option<&'static str> {
        *self.ended.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn stops_agent_when_a_task_ends_or_panics() {
        let check = async |task: futures::future::BoxFuture<'static, ()>, expected| {
            let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
            let supervisor = TaskSupervisor::new(&tasks, &stop);
            let until = stop.clone();
            supervisor.spawn("waiting", async move { until.cancelled().await });
            supervisor.spawn("failing", task);
            tasks.close();
            let stopped = tokio::time::timeout(std::time::Duration::from_secs(30), tasks.wait());
            let stopped = stopped.await.is_ok();
            assert_eq!((stopped, supervisor.failed_task()), (true, expected));
        };
        check(Box::pin(async { panic!("a bug") }), Some("failing")).await;
        check(Box::pin(async {}), Some("failing")).await;
    }
}
