//! Scenarios that share one running stack, one after the other.
//!
//! Fed by: the lists in `tests/*.rs`. A test binary starts the stack once,
//! where a scenario was selected at all, and takes it down when all passed;
//! otherwise the cluster's logs stay.
//! Must not: run two scenarios at once; some of them restart parts.

use std::future::Future;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::sync::OnceCell;

use crate::stack::Stack;

/// No scenario may take longer, on a machine much slower than ours.
const DEADLINE: Duration = Duration::from_mins(20);

type Running = Pin<Box<dyn Future<Output = Result<()>>>>;

/// A scenario: its name and what it does with the stack.
pub struct Scenario {
    name: &'static str,
    run: Box<dyn FnOnce(Arc<Stack>) -> Running + Send>,
}

/// A scenario named as a sentence.
pub fn scenario<F>(name: &'static str, run: fn(Arc<Stack>) -> F) -> Scenario
where
    F: Future<Output = Result<()>> + 'static,
{
    let run = move |stack| Box::pin(run(stack)) as Running;
    let run = Box::new(run);
    Scenario { name, run }
}

/// Runs the scenarios that the command line selects on the stack that `start` makes.
pub fn main<S>(start: fn() -> S, scenarios: Vec<Scenario>) -> ExitCode
where
    S: Future<Output = Result<Stack>> + 'static,
{
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime can be made");
    let runtime = Arc::new(runtime);
    let stack: Arc<OnceCell<Arc<Stack>>> = Arc::default();
    let trials = scenarios.into_iter().map(|scenario| {
        let (runtime, stack) = (runtime.clone(), stack.clone());
        Trial::test(scenario.name, move || {
            runtime.block_on(async {
                let started = async || Ok::<_, anyhow::Error>(Arc::new(Box::pin(start()).await?));
                let stack = stack.get_or_try_init(started).await.map_err(failed)?;
                let run = tokio::time::timeout(DEADLINE, (scenario.run)(stack.clone())).await;
                run.map_err(|_| Failed::from(format!("no end after {DEADLINE:?}")))?
                    .map_err(failed)
            })
        })
    });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    let stack = stack
        .get()
        .cloned()
        .and_then(|_| Arc::into_inner(stack)?.into_inner());
    if let (Some(stack), false) = (stack.and_then(Arc::into_inner), conclusion.has_failed())
        && let Err(error) = runtime.block_on(stack.stop())
    {
        let report = format!("the cluster was not taken down cleanly: {error:#}\n");
        let _unheard = std::io::Write::write_all(&mut std::io::stderr(), report.as_bytes());
        return ExitCode::FAILURE;
    }
    conclusion.exit_code()
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn failed(error: anyhow::Error) -> Failed {
    Failed::from(format!("{error:#}"))
}
