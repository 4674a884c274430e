//! Scenarios that share one running cluster.
//!
//! A test binary starts its cluster once, where a scenario was selected at all. A [`World`] is a
//! state of the parts that several scenarios start from; worlds follow each other on the same
//! cluster. In a world the scenarios that keep to namespaces and nodes of their own run side by
//! side; those that restart parts or count all pods come after them, alone.
//!
//! A failure is reported once. What a failed scenario left is removed before the next one that runs
//! alone: the world is cleared and started again. A scenario that cannot run, because the cluster or
//! its world did not start or was not cleared, is ignored, with the reason.

use std::any::Any;
use std::future::Future;
use std::io::Write as _;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow};
use futures::FutureExt as _;
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use tokio::runtime::Runtime;
use tokio::sync::{Mutex, RwLock};

use crate::stack::Stack;

/// No scenario may take longer, on a machine much slower than ours.
const DEADLINE: Duration = Duration::from_mins(20);
const SIDE_BY_SIDE: usize = 6;

type Running = Pin<Box<dyn Future<Output = Result<()>>>>;
type Step<T> = Box<dyn Fn(Arc<T>) -> Running + Send + Sync>;

/// What the scenarios of a test binary share: a running cluster, and what runs on it.
pub trait Fixture: Send + Sync + Sized + 'static {
    /// Ends the parts, and removes what they and the scenarios so far have left.
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
    start: Step<T>,
    scenarios: Vec<Scenario<T>>,
}

/// A world in which `start` has started the parts on a cluster that runs none.
pub fn world<T, F>(start: fn(Arc<T>) -> F, scenarios: Vec<Scenario<T>>) -> World<T>
where
    T: Fixture,
    F: Future<Output = Result<()>> + 'static,
{
    let start = Box::new(move |stack| Box::pin(start(stack)) as Running);
    World { start, scenarios }
}

/// The one cluster of a test binary.
struct Shared<T, S> {
    start: fn() -> S,
    runtime: Runtime,
    state: Mutex<State<T>>,
}

/// What runs on the cluster.
struct State<T> {
    fixture: Option<Arc<T>>,
    /// The world that was started last.
    world: Option<usize>,
    /// Why no scenario can run: for this world, or without one for all.
    obstacle: Option<(Option<usize>, String)>,
    /// The scenario that failed since the world was started; it may have left anything.
    untidy: Option<&'static str>,
    not_run: usize,
}

impl<T> State<T> {
    /// From now on no scenario can run, of this world or of any. The one that finds it reports it,
    /// unless it follows from a failure that was reported.
    fn obstruct(
        &mut self,
        world: Option<usize>,
        (why, error): (&str, &anyhow::Error),
        was_reported: bool,
    ) -> Unready {
        let text = format!("{why}: {error:#}");
        self.obstacle = Some((world, text.clone()));
        if was_reported {
            Unready::NotRun(text)
        } else {
            Unready::Failed(text)
        }
    }
}

/// Why a scenario cannot run.
enum Unready {
    /// This is the failure.
    Failed(String),
    /// The failure was reported before.
    NotRun(String),
}

impl<T: Fixture, S: Future<Output = Result<T>>> Shared<T, S> {
    /// The cluster with this world on it. Where a scenario has failed, one that runs alone gets the
    /// world as it was at first.
    async fn ready(&self, world: usize, start: &Step<T>, alone: bool) -> Result<Arc<T>, Unready> {
        let mut state = self.state.lock().await;
        if let Some((of, why)) = &state.obstacle
            && of.is_none_or(|of| of == world)
        {
            return Err(Unready::NotRun(why.clone()));
        }
        let fixture = match &state.fixture {
            Some(fixture) => fixture.clone(),
            None => match Box::pin((self.start)()).await {
                Ok(fixture) => state.fixture.insert(Arc::new(fixture)).clone(),
                Err(error) => {
                    return Err(state.obstruct(None, ("start the cluster", &error), false));
                }
            },
        };
        let again = state.world == Some(world);
        if again && !(alone && state.untidy.is_some()) {
            return Ok(fixture);
        }
        if state.world.is_some()
            && let Err(error) = fixture.clear().await
        {
            let untidy = state.untidy;
            let why = match untidy {
                Some(name) => format!("remove what {name:?} left"),
                None => "clear the cluster".to_owned(),
            };
            return Err(state.obstruct(Some(world), (&why, &error), untidy.is_some()));
        }
        state.world = Some(world);
        if let Err(error) = start(fixture.clone()).await {
            return Err(state.obstruct(Some(world), ("start the parts", &error), again));
        }
        state.untidy = None;
        Ok(fixture)
    }

    async fn run(
        &self,
        (world, start): (usize, &Step<T>),
        gate: &RwLock<()>,
        scenario: Scenario<T>,
    ) -> Result<Completion, Failed> {
        let (_alone, _beside);
        if scenario.alone {
            _alone = gate.write().await;
        } else {
            _beside = gate.read().await;
        }
        let fixture = match self.ready(world, start, scenario.alone).await {
            Ok(fixture) => fixture,
            Err(Unready::Failed(why)) => return Err(Failed::from(why)),
            Err(Unready::NotRun(why)) => {
                self.state.lock().await.not_run += 1;
                return Ok(Completion::ignored_with(format!("not run: {why}")));
            }
        };
        let run = AssertUnwindSafe((scenario.run)(fixture)).catch_unwind();
        let outcome = match tokio::time::timeout(DEADLINE, run).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(panic)) => Err(anyhow!("it panicked: {}", text_of(&*panic))),
            Err(_) => Err(anyhow!("no end after {DEADLINE:?}")),
        };
        let Err(error) = outcome else {
            return Ok(Completion::Completed);
        };
        self.state.lock().await.untidy = Some(scenario.name);
        Err(Failed::from(format!("{error:#}")))
    }
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("without words")
}

/// Runs the scenarios that the command line selects on the cluster that `start` makes.
pub fn main<T, S>(start: fn() -> S, worlds: Vec<World<T>>) -> ExitCode
where
    T: Fixture,
    S: Future<Output = Result<T>> + 'static,
{
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(arguments.test_threads.unwrap_or(SIDE_BY_SIDE));
    let shared = Arc::new(Shared {
        start,
        runtime: Runtime::new().expect("a runtime can be made"),
        state: Mutex::new(State {
            fixture: None,
            world: None,
            obstacle: None,
            untidy: None,
            not_run: 0,
        }),
    });
    let mut success = true;
    for (number, world) in worlds.into_iter().enumerate() {
        let conclusion = libtest_mimic::run(&arguments, trials(number, world, &shared));
        success &= !conclusion.has_failed();
    }
    let Shared { runtime, state, .. } =
        Arc::into_inner(shared).expect("the trials have dropped theirs");
    let state = state.into_inner();
    for line in aliquot_cluster::starvation::repeated() {
        report(&line);
    }
    if state.not_run > 0 {
        success = false;
        report(&format!("scenarios not run: {}", state.not_run));
    }
    if let (Some(fixture), true) = (state.fixture.and_then(Arc::into_inner), success)
        && let Err(error) = runtime.block_on(fixture.stop())
    {
        report(&format!(
            "the cluster was not taken down cleanly: {error:#}"
        ));
        success = false;
    }
    ExitCode::from(u8::from(!success))
}

fn report(line: &str) {
    let _closed = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

fn trials<T, S>(number: usize, world: World<T>, shared: &Arc<Shared<T, S>>) -> Vec<Trial>
where
    T: Fixture,
    S: Future<Output = Result<T>> + 'static,
{
    let World {
        start,
        mut scenarios,
    } = world;
    scenarios.sort_by_key(|scenario| scenario.alone);
    let start = Arc::new(start);
    let gate = Arc::new(RwLock::new(()));
    let trial = |scenario: Scenario<T>| {
        let (shared, start, gate) = (shared.clone(), start.clone(), gate.clone());
        let (name, long) = (scenario.name, scenario.long);
        let run = move || {
            let run = shared.run((number, &start), &gate, scenario);
            shared.runtime.block_on(run)
        };
        Trial::ignorable_test(name, run).with_ignored_flag(long)
    };
    scenarios.into_iter().map(trial).collect()
}
