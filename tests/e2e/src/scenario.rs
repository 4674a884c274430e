//! Scenarios that share one running cluster.
//!
//! A test binary starts its cluster once, where a scenario was selected at all. A [`World`] is a
//! state of the parts that several scenarios start from; worlds follow each other on the same
//! cluster. In a world the scenarios that keep to namespaces and nodes of their own run side by
//! side; those that restart parts come after them, alone.

use std::future::Future;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::sync::{Mutex, OnceCell, RwLock};

use crate::stack::Stack;

/// No scenario may take longer, on a machine much slower than ours.
const DEADLINE: Duration = Duration::from_mins(20);
/// Scenarios that run side by side.
const SIDE_BY_SIDE: usize = 6;

type Running = Pin<Box<dyn Future<Output = Result<()>>>>;
type Step<T> = Box<dyn FnOnce(Arc<T>) -> Running + Send>;

/// What the scenarios of a test binary share: a running cluster, and what runs on it.
pub trait Fixture: Send + Sync + Sized + 'static {
    /// Removes what the world before has left.
    fn clear(&self) -> impl Future<Output = Result<()>>;

    /// Ends it after a success; when it is dropped, its logs stay.
    fn stop(self) -> impl Future<Output = Result<()>>;
}

impl Fixture for Stack {
    async fn clear(&self) -> Result<()> {
        Self::clear(self).await
    }

    async fn stop(self) -> Result<()> {
        Self::stop(self).await
    }
}

/// A scenario: its name and what it does with what it shares with others.
pub struct Scenario<T = Stack> {
    name: &'static str,
    run: Step<T>,
    alone: bool,
    long: bool,
}

impl<T> Scenario<T> {
    /// The same, run by `make test-all` only: it measures, or takes minutes.
    #[must_use]
    pub fn long(mut self) -> Self {
        self.long = true;
        self
    }
}

/// A scenario during which no other one runs; its name states what it promises.
pub fn scenario<T, F>(name: &'static str, run: fn(Arc<T>) -> F) -> Scenario<T>
where
    T: Fixture,
    F: Future<Output = Result<()>> + 'static,
{
    let run = Box::new(move |stack| Box::pin(run(stack)) as Running);
    Scenario {
        name,
        run,
        alone: true,
        long: false,
    }
}

/// A scenario that restarts nothing and counts nothing but its own, so that others may run beside it.
pub fn side_by_side<T, F>(name: &'static str, run: fn(Arc<T>) -> F) -> Scenario<T>
where
    T: Fixture,
    F: Future<Output = Result<()>> + 'static,
{
    Scenario {
        alone: false,
        ..scenario(name, run)
    }
}

/// What the parts are like before the first of some scenarios.
pub struct World<T = Stack> {
    start: Option<Step<T>>,
    scenarios: Vec<Scenario<T>>,
}

/// A world in which `start` has started the parts on a cluster that runs none.
pub fn world<T, F>(start: fn(Arc<T>) -> F, scenarios: Vec<Scenario<T>>) -> World<T>
where
    T: Fixture,
    F: Future<Output = Result<()>> + 'static,
{
    let start = Box::new(move |stack| Box::pin(start(stack)) as Running);
    World {
        start: Some(start),
        scenarios,
    }
}

/// The one cluster of a test binary.
struct Shared<T, S> {
    start: fn() -> S,
    fixture: OnceCell<Arc<T>>,
}

impl<T, S: Future<Output = Result<T>>> Shared<T, S> {
    async fn get(&self) -> Result<Arc<T>> {
        let start = async || Ok::<_, anyhow::Error>(Arc::new(Box::pin((self.start)()).await?));
        self.fixture.get_or_try_init(start).await.cloned()
    }
}

/// Runs the scenarios that the command line selects on the cluster that `start` makes.
pub fn main<T, S>(start: fn() -> S, worlds: Vec<World<T>>) -> ExitCode
where
    T: Fixture,
    S: Future<Output = Result<T>> + 'static,
{
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(arguments.test_threads.unwrap_or(SIDE_BY_SIDE));
    let runtime = Arc::new(tokio::runtime::Runtime::new().expect("a runtime can be made"));
    let shared = Arc::new(Shared {
        start,
        fixture: OnceCell::new(),
    });
    let mut failed = false;
    for world in worlds {
        let trials = trials(world, &runtime, &shared);
        failed |= libtest_mimic::run(&arguments, trials).has_failed();
    }
    let fixture = Arc::into_inner(shared).and_then(|shared| shared.fixture.into_inner());
    if let (Some(fixture), false) = (fixture.and_then(Arc::into_inner), failed)
        && let Err(error) = runtime.block_on(fixture.stop())
    {
        let report = format!("the cluster was not taken down cleanly: {error:#}\n");
        let _closed = std::io::Write::write_all(&mut std::io::stderr(), report.as_bytes());
        failed = true;
    }
    ExitCode::from(u8::from(failed))
}

fn trials<T, S>(
    world: World<T>,
    runtime: &Arc<tokio::runtime::Runtime>,
    shared: &Arc<Shared<T, S>>,
) -> Vec<Trial>
where
    T: Fixture,
    S: Future<Output = Result<T>> + 'static,
{
    let World {
        start,
        mut scenarios,
    } = world;
    scenarios.sort_by_key(|scenario| scenario.alone);
    // Whichever comes first starts the world.
    let start = Arc::new(Mutex::new(start));
    let gate = Arc::new(RwLock::new(()));
    let trial = |scenario: Scenario<T>| {
        let (runtime, shared) = (runtime.clone(), shared.clone());
        let (start, gate) = (start.clone(), gate.clone());
        let (name, long) = (scenario.name, scenario.long);
        let run = move || {
            runtime.block_on(async {
                let fixture = shared.get().await.map_err(failed)?;
                {
                    let mut start = start.lock().await;
                    if let Some(start) = start.take() {
                        started(&fixture, start).await.map_err(failed)?;
                    }
                }
                let (_alone, _beside);
                if scenario.alone {
                    _alone = gate.write().await;
                } else {
                    _beside = gate.read().await;
                }
                let run = tokio::time::timeout(DEADLINE, (scenario.run)(fixture)).await;
                run.map_err(|_| Failed::from(format!("no end after {DEADLINE:?}")))?
                    .map_err(failed)
            })
        };
        Trial::test(name, run).with_ignored_flag(long)
    };
    scenarios.into_iter().map(trial).collect()
}

async fn started<T: Fixture>(fixture: &Arc<T>, start: Step<T>) -> Result<()> {
    fixture.clear().await.context("clear the cluster")?;
    start(fixture.clone()).await.context("start the parts")
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn failed(error: anyhow::Error) -> Failed {
    Failed::from(format!("{error:#}"))
}
