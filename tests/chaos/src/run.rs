//! One run: load, and at each place in turn somebody is killed.
//!
//! Fed by: a seed and the number of pods. Must not: go on after a fault.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_cluster::Cluster;
use aliquot_cluster::wait::eventually;
use aliquot_e2e::stack::{NODE, NodeOptions, Stack};
use anyhow::{Context as _, Result};
use fastrand::Rng;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use tokio_util::sync::CancellationToken;

use crate::load::{self, Load, NAMESPACE};
use crate::observer::{Observer, RESOLVED};
use crate::places::{PLACES, Place, Provocation, Victims};
use crate::provoke;
use crate::replicas::{Pair, Replicas, say};
use crate::rest;

/// A place that is not passed within this is not reached at all.
const PATIENCE: Duration = Duration::from_mins(1);
/// Pods before the first kill: enough to fill the cluster.
const FILL: usize = 200;
/// In a run of fewer pods the victims at a place are drawn; else each has its turn.
const LONG: usize = 3_000;

/// One kill.
#[derive(Clone, Copy, Debug)]
struct Kill {
    place: Place,
    victims: Victims,
    passage: u32,
}

/// Runs on a cluster of its own.
pub async fn run(seed: u64, pods: usize) -> Result<()> {
    say(&format!("seed {seed}, {pods} pods"));
    let cluster = Cluster::with_node().node_name(NODE).without_scheduler();
    let stack = Stack::on(Box::pin(cluster.start()).await?).await?;
    stack.start_device_plugin(&NodeOptions::default()).await?;
    load::nodes(&stack).await?;
    let stack = Arc::new(stack);
    let stop = CancellationToken::new();
    let outcome = Box::pin(on(stack.clone(), seed, pods, stop.clone())).await;
    stop.cancel();
    outcome.with_context(|| format!("seed {seed}"))?;
    eventually(PATIENCE, "all to let go of the stack", || async {
        Ok((Arc::strong_count(&stack) == 1).then_some(()))
    })
    .await?;
    let stack = Arc::into_inner(stack).context("nobody else has it")?;
    stack.stop().await
}

async fn on(stack: Arc<Stack>, seed: u64, pods: usize, stop: CancellationToken) -> Result<()> {
    let mut rng = Rng::with_seed(seed);
    let replicas = Replicas::start(stack.clone(), stop.clone()).await?;
    let capacity = stack.capacity().await?;
    let observer = Observer::start(stack.cluster.admin()?, capacity, stop);
    let mut load = Load::new(&stack, observer.clone(), rng.fork())?;
    let kills = kills(&mut rng, pods);
    let over = CancellationToken::new();
    over.cancel();
    load.wave(FILL, over).await?;
    let each = pods.saturating_sub(FILL) / kills.len();
    let start = Instant::now();
    for kill in kills {
        replicas.whole().await?;
        let leader = replicas.leader().await?;
        let blow = Step {
            stack: &stack,
            replicas: &replicas,
            observer: &observer,
            leader,
            kill,
        };
        let at = start.elapsed().as_secs_f64();
        let what = format!("{:?} at {}", kill.victims, kill.place.name);
        let paused = Box::pin(blow.run(&mut load, each)).await;
        let paused = paused.with_context(|| format!("{what}, {at:.1} s"))?;
        say(&format!(
            "{at:6.1} s: {what} of {}: {:.2} s without a binding",
            leader.name,
            paused.as_secs_f64()
        ));
        observer.check()?;
    }
    replicas.whole().await?;
    let last = Instant::now();
    let (bound, waiting) = rest::reached(&stack, &replicas, &observer).await?;
    say(&format!(
        "{} pods created, {bound} bound and {waiting} waiting, at rest {:.1} s after the last kill",
        load.created(),
        last.elapsed().as_secs_f64()
    ));
    load.clear().await?;
    rest::emptied(&stack, &replicas).await?;
    Ok(())
}

/// Every place, in a random order.
fn kills(rng: &mut Rng, pods: usize) -> Vec<Kill> {
    let drawn = [Victims::Extender, Victims::KubeScheduler, Victims::Both];
    let mut kills = Vec::new();
    for place in PLACES {
        let one = [Victims::DRAWN[rng.usize(..Victims::DRAWN.len())]];
        let victims = if pods < LONG { &one[..] } else { &drawn };
        kills.extend(victims.iter().map(|victims| Kill {
            place: *place,
            victims: *victims,
            passage: rng.u32(1..=place.passages),
        }));
    }
    rng.shuffle(&mut kills);
    kills
}

/// A kill and what it needs.
struct Step<'a> {
    stack: &'a Stack,
    replicas: &'a Replicas,
    observer: &'a Observer,
    leader: &'a Pair,
    kill: Kill,
}

impl Step<'_> {
    /// Kills and waits until pods are bound again; how long none was.
    async fn run(&self, load: &mut Load, pods: usize) -> Result<Duration> {
        let target = match self.kill.place.provocation {
            Provocation::NewTerm => self.replicas.other(self.leader)?,
            _ => self.leader,
        };
        let done = CancellationToken::new();
        let forged = format!("forged-{}", load.created());
        let body = async {
            let _done = done.clone().drop_guard();
            let begun = Instant::now();
            let Kill {
                place,
                victims,
                passage,
            } = self.kill;
            let armed = target.arm(place, passage, victims)?;
            let fired = eventually(PATIENCE, "the place to be passed", || async {
                Ok(target.fired(armed).then(Instant::now))
            });
            let fired = tokio::select! {
                fired = fired => fired?,
                provoked = self.provoke(target, &forged) => match provoked? {},
            };
            let dead = match victims {
                Victims::Extender => String::new(),
                Victims::KubeScheduler | Victims::Both => self.replicas.holder().await?,
            };
            self.replicas.leader_after(&dead).await?;
            let leads = Instant::now();
            eventually(PATIENCE, "a binding by who leads now", || async {
                Ok((self.observer.pause(leads).1 > 0).then_some(()))
            })
            .await?;
            match place.provocation {
                Provocation::NewTerm => Ok(begun),
                _ => Ok(fired),
            }
        };
        let (killed, ()) = futures::try_join!(body, load.wave(pods, done.clone()))?;
        if self.kill.place.provocation == Provocation::Forgery {
            self.resolved(&forged).await?;
        }
        Ok(self.observer.pause(killed).0)
    }

    /// Leads the replica to the place; ends only when that fails.
    async fn provoke(&self, target: &Pair, forged: &str) -> Result<Infallible> {
        match self.kill.place.provocation {
            Provocation::Load => {}
            Provocation::LostAnswers => provoke::lose_answers(&target.proxy).await?,
            Provocation::Rejections => provoke::reject(&target.proxy).await?,
            Provocation::Forgery => provoke::forge(self.stack, forged).await?,
            Provocation::NewTerm => self.leader.kill().await?,
        }
        std::future::pending().await
    }

    /// Waits until the pod that its node refused is gone.
    async fn resolved(&self, forged: &str) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.stack.cluster.admin()?, NAMESPACE);
        eventually(RESOLVED, "the refused pod to be evicted", || async {
            Ok(pods.get_opt(forged).await?.is_none().then_some(()))
        })
        .await
    }
}
