//! Creates and deletes pods: many a second during a kill, if the API server answers as fast, a few a
//! second until pods are bound again. There are always slightly more pods than fit.

use std::collections::HashSet;
use std::time::Duration;

use aliquot_e2e::pods::simple;
use aliquot_e2e::pool::Shape;
use aliquot_e2e::stack::{NODE, Stack};
use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;
use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Interval, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::observer::{Observer, PodSample};

/// The namespace.
pub const NAMESPACE: &str = "chaos";
/// Prefix of the names of the fake nodes.
pub const NODES: &str = "chaos-";
const COUNT: usize = 8;
/// Of each fake node.
const SHAPE: Shape = Shape::of_gpus(4);
/// MiB that pods request; five of the mean fit on a GPU.
const MEMORY: [u64; 4] = [8_000, 12_000, 16_000, 24_000];
/// From this number of pods on fake nodes on, one is deleted for each new one: about ten more than
/// fit.
const LIVE: usize = 180;
/// The same for the real node, whose two GPUs have space for more.
const RUNNING: usize = 6;
/// Every so-many-th pod is for the real node.
const REAL: usize = 25;
/// Prefix of the names of pods on fake nodes.
pub const MADE_UP: &str = "p-";
/// See [`MADE_UP`].
pub const RUN: &str = "run-";
/// Between two pods once the wave is over.
const SLOW: Duration = Duration::from_millis(200);
/// Requests without an answer, at most: a busy machine is not buried under them.
const IN_FLIGHT: usize = 10;

/// Creates and deletes.
pub struct Load {
    pods: Api<Pod>,
    observer: Observer,
    rng: Rng,
    /// Between two pods of a wave.
    every: Duration,
    created: usize,
    deleted: HashSet<String>,
}

/// Creates the namespace and the fake nodes.
pub async fn nodes(stack: &Stack) -> Result<()> {
    stack.cluster.namespace(NAMESPACE).await?;
    for n in 0..COUNT {
        stack
            .gpu_node("chaos", &format!("{NODES}{n}"), SHAPE)
            .await?;
    }
    Ok(())
}

/// What is late is not made up for.
fn interval(period: Duration) -> Interval {
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

impl Load {
    /// Nothing is created yet.
    pub fn new(stack: &Stack, observer: Observer, rng: Rng, every: Duration) -> Result<Self> {
        Ok(Self {
            pods: Api::namespaced(stack.cluster.admin()?, NAMESPACE),
            observer,
            rng,
            every,
            created: 0,
            deleted: HashSet::new(),
        })
    }

    /// How many pods were created so far.
    pub fn created(&self) -> usize {
        self.created
    }

    /// Creates `count` pods, and then a few a second until `done`. What the API server refuses counts
    /// as a failure.
    pub async fn wave(&mut self, count: usize, done: CancellationToken) -> Result<()> {
        let mut requests = JoinSet::new();
        let mut ticks = interval(self.every);
        for n in 0.. {
            if n == count {
                ticks = interval(SLOW);
            }
            if n >= count && done.is_cancelled() {
                break;
            }
            ticks.tick().await;
            let (pods, pod) = (self.pods.clone(), serde_json::from_value(self.next())?);
            requests.spawn(async move { create(&pods, &pod).await });
            if let Some((name, grace)) = self.surplus() {
                let pods = self.pods.clone();
                requests.spawn(async move { delete(&pods, &name, grace).await });
            }
            while let Some(ended) = requests.try_join_next() {
                ended??;
            }
            while requests.len() > IN_FLIGHT {
                requests.join_next().await.context("a request")???;
            }
        }
        let ended = requests.join_all().await;
        ended.into_iter().collect()
    }

    fn next(&mut self) -> Value {
        self.created += 1;
        let n = self.created;
        let memory = MEMORY[self.rng.usize(..MEMORY.len())].to_string();
        let limits = [("gpu", "1"), ("gpumem", &*memory), ("gpucores", "5")];
        let (name, label, value) = if n.is_multiple_of(REAL) {
            (format!("{RUN}{n}"), "kubernetes.io/hostname", NODE)
        } else {
            (format!("{MADE_UP}{n}"), "pool", NAMESPACE)
        };
        let mut pod = simple(NAMESPACE, &name, &limits);
        pod["spec"]["schedulerName"] = json!("aliquot-scheduler");
        pod["spec"]["nodeSelector"] = json!({label: value});
        // Fake nodes have no heartbeats.
        pod["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
        pod
    }

    /// A pod to delete, and its grace period, if there are enough. Mostly a bound one, which frees
    /// its share.
    fn surplus(&mut self) -> Option<(String, u32)> {
        for (begins, most, grace) in [(RUN, RUNNING, 1), (MADE_UP, LIVE, 0)] {
            let mut live = self.observer.pods(begins);
            live.retain(|pod| !self.deleted.contains(&pod.name));
            if live.len() <= most {
                continue;
            }
            let mut choice: Vec<&PodSample> =
                live.iter().filter(|pod| pod.node.is_some()).collect();
            if choice.is_empty() || self.rng.u32(..10) == 0 {
                choice = live.iter().collect();
            }
            let name = choice[self.rng.usize(..choice.len())].name.clone();
            self.deleted.insert(name.clone());
            return Some((name, grace));
        }
        None
    }

    /// Deletes all that is left.
    pub async fn clear(&self) -> Result<()> {
        let live = [RUN, MADE_UP].map(|begins| self.observer.pods(begins));
        let live = live.iter().flatten();
        let deleted = live.map(|pod| delete(&self.pods, &pod.name, 0));
        join_all(deleted).await.into_iter().collect()
    }

    /// Fails when a pod of a fake node was deleted by anybody else.
    pub fn check_deleted(&self) -> Result<()> {
        let others = self.observer.deleted(MADE_UP);
        let others: Vec<_> = others.difference(&self.deleted).collect();
        ensure!(others.is_empty(), "somebody deleted {others:?}");
        Ok(())
    }
}

/// A request whose connection ended before the answer is sent once more, as every client does: a
/// connection that was silent for long may be closed in the moment in which it is used.
async fn answered<T, F: Future<Output = kube::Result<T>>>(send: impl Fn() -> F) -> kube::Result<T> {
    match send().await {
        Err(kube::Error::Service(_)) => send().await,
        answer => answer,
    }
}

/// The pod may be there: its first request may have arrived.
async fn create(pods: &Api<Pod>, pod: &Pod) -> Result<()> {
    let params = PostParams::default();
    match answered(|| pods.create(&params, pod)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        Err(error) => Err(error).context("a pod was not created"),
    }
}

/// The pod may be gone: the client repeats a DELETE that the API server answered with 504, and that
/// may have been done.
async fn delete(pods: &Api<Pod>, name: &str, grace: u32) -> Result<()> {
    let params = DeleteParams::default().grace_period(grace);
    match answered(|| pods.delete(name, &params)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        Err(error) => Err(error).with_context(|| format!("pod {name} was not deleted")),
    }
}
