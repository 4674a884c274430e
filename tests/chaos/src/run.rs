//! One run: load, and at each place in turn a process is killed. It ends at the first error.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_cluster::Cluster;
use aliquot_cluster::wait::{PATIENCE, eventually};
use aliquot_core::inventory::INVENTORY;
use aliquot_e2e::figures::print_line;
use aliquot_e2e::stack::{NODE, NodeOptions, Stack};
use anyhow::{Context as _, Result};
use fastrand::Rng;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use tokio_util::sync::CancellationToken;

use crate::load::{self, Load, NAMESPACE};
use crate::observer::Observer;
use crate::places::{PLACES, Place, Provocation, Victims};
use crate::provoke::{self, FORGED};
use crate::replicas::{Pair, Replicas};
use crate::rest;

/// From the node's refusal to the eviction of the pod.
const RESOLVED: Duration = Duration::from_mins(2);
/// On a busy machine the lease can move away from the replica at which a place is armed: it is
/// tried again, so often at most.
const TRIES: usize = 10;
/// Pods before the first kill: enough to fill the cluster.
const FILL: usize = 200;

#[derive(Clone, Copy, Debug)]
struct Kill {
    place: Place,
    victims: Victims,
    passage: u32,
}

/// How much of it.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Pods in all, not counting those that only show who leads.
    pub pods: usize,
    /// Between two pods.
    pub every: Duration,
    /// One place in so many.
    pub one_in: usize,
    /// Each victim at each place; else one is drawn.
    pub all_victims: bool,
}

/// Runs on a cluster of its own.
pub async fn run(seed: u64, size: Size) -> Result<()> {
    print_line(&format!("seed {seed}, {} pods", size.pods));
    let cluster = Cluster::with_node().without_scheduler();
    let stack = Stack::on(Box::pin(cluster.start()).await?).await?;
    stack.start_device_plugin(&agent()).await?;
    load::nodes(&stack).await?;
    let body = async |stack, stop| Box::pin(on(stack, seed, size, stop)).await;
    let outcome = on_stack(stack, body).await;
    outcome.with_context(|| format!("seed {seed}"))
}

/// Runs `body`, and takes the stack down if that went well. Other owners of the stack drop it when
/// the token is cancelled.
pub async fn on_stack(
    stack: Stack,
    body: impl AsyncFnOnce(Arc<Stack>, CancellationToken) -> Result<()>,
) -> Result<()> {
    let stack = Arc::new(stack);
    let stop = CancellationToken::new();
    let outcome = body(stack.clone(), stop.clone()).await;
    stop.cancel();
    outcome?;
    eventually(PATIENCE, "all to let go of the stack", || async {
        Ok((Arc::strong_count(&stack) == 1).then_some(()))
    })
    .await?;
    let stack = Arc::into_inner(stack).context("the stack is still shared")?;
    stack.stop().await
}

async fn on(stack: Arc<Stack>, seed: u64, size: Size, stop: CancellationToken) -> Result<()> {
    let mut rng = Rng::with_seed(seed);
    let replicas = Replicas::start(stack.clone(), stop.clone(), &[]).await?;
    let capacity = stack.capacity().await?;
    let observer = Observer::start(stack.cluster.admin()?, capacity, stop);
    let mut load = Load::new(&stack, observer.clone(), rng.fork(), size.every)?;
    let kills = kills(&mut rng, size);
    let over = CancellationToken::new();
    over.cancel();
    load.wave(FILL, over).await?;
    let each = size.pods.saturating_sub(FILL) / kills.len();
    let start = Instant::now();
    for kill in kills {
        let at = start.elapsed().as_secs_f64();
        let what = format!("{at:6.1} s: {:?} at {}", kill.victims, kill.place.name);
        let mut paused = None;
        for _ in 0..TRIES {
            replicas.whole().await?;
            let blow = KillAttempt {
                stack: &stack,
                replicas: &replicas,
                observer: &observer,
                leader: replicas.leader().await?,
                kill,
            };
            let struck = Box::pin(blow.carry_out(&mut load, each)).await;
            paused = struck.with_context(|| what.clone())?;
            observer.check()?;
            if paused.is_some() {
                break;
            }
            print_line(&format!(
                "{what}: the lease moved before the place was passed"
            ));
        }
        let paused = paused.with_context(|| format!("{what}: the lease moved {TRIES} times"))?;
        print_line(&format!(
            "{what}: {:.2} s without a binding",
            paused.as_secs_f64()
        ));
    }
    for point in ["ResizeStored", "ResizeWritten"] {
        kill_agent(&stack, &observer, point).await?;
    }
    replicas.whole().await?;
    let last = Instant::now();
    // The long run must meet the specified time.
    let patience = if size.all_victims {
        rest::PROMISED
    } else {
        PATIENCE
    };
    let (bound, waiting) = rest::reached(&stack, &replicas, &observer, patience).await?;
    print_line(&format!(
        "{} pods created, {bound} bound and {waiting} waiting, at rest {:.1} s after the last kill",
        load.created(),
        last.elapsed().as_secs_f64()
    ));
    load.check_deleted()?;
    load.clear().await?;
    rest::emptied(&stack, &replicas).await
}

/// The agent that can be killed.
fn agent() -> NodeOptions {
    NodeOptions {
        chaos: true,
        ..NodeOptions::default()
    }
}

/// Kills the agent of the real node while it resizes a running share, and starts it again.
async fn kill_agent(stack: &Stack, observer: &Observer, point: &'static str) -> Result<()> {
    stack.kill_at(point)?;
    tokio::select! {
        killed = stack.killed() => killed.context(point)?,
        failed = provoke::resize(stack, observer) => failed?,
    }
    print_line(&format!("the agent was killed at {point}"));
    stack.start_device_plugin(&agent()).await
}

/// The kills, in a random order.
fn kills(rng: &mut Rng, size: Size) -> Vec<Kill> {
    let drawn = [Victims::Extender, Victims::KubeScheduler, Victims::Both];
    let mut kills = Vec::new();
    for place in PLACES {
        let one = if place.changes_leader() {
            // A second change takes as long again.
            [Victims::Extender]
        } else {
            [Victims::DRAWN[rng.usize(..Victims::DRAWN.len())]]
        };
        let victims = if size.all_victims { &drawn } else { &one[..] };
        kills.extend(victims.iter().map(|victims| Kill {
            place: *place,
            victims: *victims,
            passage: rng.u32(1..=place.passages),
        }));
    }
    rng.shuffle(&mut kills);
    kills.truncate(kills.len() / size.one_in);
    kills
}

/// A kill and what it needs.
struct KillAttempt<'a> {
    stack: &'a Stack,
    replicas: &'a Replicas,
    observer: &'a Observer,
    leader: &'a Pair,
    kill: Kill,
}

impl KillAttempt<'_> {
    /// Kills and waits until pods are bound again; how long none was. `None` when the lease moved
    /// before the place was passed.
    async fn carry_out(&self, load: &mut Load, pods: usize) -> Result<Option<Duration>> {
        let done = CancellationToken::new();
        let forged = format!("{FORGED}{}", load.created());
        let body = async {
            let _done = done.clone().drop_guard();
            let begun = Instant::now();
            let found = self.wait_killed(&forged).await?;
            self.leader.release();
            let Some((fallen, fired)) = found else {
                return Ok(None);
            };
            let mut dead = self.replicas.holder().await?;
            if self.kill.victims == Victims::Extender || !fallen.is_named_in(&dead) {
                dead.clear();
            }
            self.replicas.leader_after(&dead).await?;
            let leads = Instant::now();
            eventually(PATIENCE, "a binding by who leads now", || async {
                Ok((self.observer.pause(leads).1 > 0).then_some(()))
            })
            .await?;
            match self.kill.place.provocation {
                Provocation::NewTerm => Ok(Some(begun)),
                _ => Ok(Some(fired)),
            }
        };
        let (killed, ()) = futures::try_join!(body, load.wave(pods, done.clone()))?;
        if self.kill.place.provocation == Provocation::Forgery {
            self.resolved(&forged).await?;
        }
        Ok(killed.map(|killed| self.observer.pause(killed).0))
    }

    /// Leads a replica to the place and waits until a process was killed there: the replica and
    /// when. `None` when the lease moved to the other one.
    async fn wait_killed(&self, forged: &str) -> Result<Option<(&Pair, Instant)>> {
        let target = match self.kill.place.provocation {
            Provocation::NewTerm => self.replicas.other(self.leader)?,
            _ => self.leader,
        };
        let before = self.replicas.holder().await?;
        if !self.leader.is_named_in(&before) {
            return Ok(None);
        }
        let armed = target.arm(self.kill.place, self.kill.passage, self.kill.victims)?;
        let fired = eventually(PATIENCE, "the place to be passed", || async {
            if target.fired(armed) {
                return Ok(Some(Some(Instant::now())));
            }
            let holder = self.replicas.holder().await?;
            let moved = holder != before && !target.is_named_in(&holder);
            Ok(moved.then_some(None))
        });
        tokio::select! {
            fired = fired => match fired? {
                Some(fired) => Ok(Some((target, fired))),
                // It was passed in this very moment: the processes are about to be killed.
                None if !target.disarm() => Ok(Some((target, Instant::now()))),
                None => Ok(None),
            },
            provoked = self.provoke(target, forged) => match provoked? {},
        }
    }

    /// Leads the replica to the place; returns only if that fails.
    async fn provoke(&self, target: &Pair, forged: &str) -> Result<Infallible> {
        match self.kill.place.provocation {
            Provocation::Load => {}
            Provocation::LostAnswers => provoke::lose_answers(&target.proxy).await?,
            Provocation::Rejections => provoke::reject(&target.proxy).await?,
            Provocation::Forgery => provoke::forge(self.stack, forged).await?,
            Provocation::Resizes => provoke::resize(self.stack, self.observer).await?,
            Provocation::NewTerm => self.leader.kill().await?,
        }
        std::future::pending().await
    }

    /// Waits until the node has refused a pod whose name begins so, and then until all those are gone.
    async fn resolved(&self, forged: &str) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.stack.cluster.admin()?, NAMESPACE);
        let nodes: Api<Node> = Api::all(self.stack.cluster.admin()?);
        eventually(PATIENCE, "the node to refuse the forged pod", || async {
            let annotations = nodes.get(NODE).await?.metadata.annotations;
            let reported = annotations.unwrap_or_default().remove(INVENTORY);
            let reported = reported.is_some_and(|text| text.contains(forged));
            Ok((reported || provoke::is_gone(&pods, forged).await?).then_some(()))
        })
        .await?;
        eventually(RESOLVED, "the refused pod to be evicted", || async {
            Ok(provoke::is_gone(&pods, forged).await?.then_some(()))
        })
        .await
    }
}
