//! Pods that come and go: a hundred a second while it matters, a few a second to
//! see who still decides. The cluster is kept a little more than full.
//!
//! Fed by: what the observer has seen. Must not: delete a pod of anybody else.

use std::collections::HashSet;
use std::time::Duration;

use aliquot_e2e::pods::simple;
use aliquot_e2e::pool::Shape;
use aliquot_e2e::stack::{NODE, Stack};
use anyhow::Result;
use fastrand::Rng;
use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::observer::{Observer, Seen};

/// The namespace.
pub const NAMESPACE: &str = "chaos";
/// The names of the made-up nodes begin so.
pub const NODES: &str = "chaos-";
const COUNT: usize = 8;
/// Of each made-up node.
const SHAPE: Shape = Shape {
    cards: 4,
    seats: 10,
};
/// MiB that pods ask for; five of the mean fit on a card.
const MEMORY: [u64; 4] = [8_000, 12_000, 16_000, 24_000];
/// Pods on made-up nodes from which on one is deleted for each new one: about
/// ten more than fit.
const LIVE: usize = 180;
/// The same for the real node, where two cards would hold more.
const RUNNING: usize = 6;
/// Every so-many-th pod is for the real node.
const REAL: usize = 25;
/// Names of pods on made-up nodes, and of those on the real one.
pub const MADE_UP: &str = "p-";
/// See [`MADE_UP`].
pub const RUN: &str = "run-";
/// A hundred a second.
const FAST: Duration = Duration::from_millis(10);
/// Afterwards.
const SLOW: Duration = Duration::from_millis(200);

/// Creates and deletes.
pub struct Load {
    pods: Api<Pod>,
    observer: Observer,
    rng: Rng,
    created: usize,
    deleted: HashSet<String>,
}

/// Makes the namespace and the made-up nodes.
pub async fn nodes(stack: &Stack) -> Result<()> {
    stack.cluster.namespace(NAMESPACE).await?;
    for n in 0..COUNT {
        stack
            .gpu_node("chaos", &format!("{NODES}{n}"), SHAPE)
            .await?;
    }
    Ok(())
}

impl Load {
    /// Nothing is created yet.
    pub fn new(stack: &Stack, observer: Observer, rng: Rng) -> Result<Self> {
        Ok(Self {
            pods: Api::namespaced(stack.cluster.admin()?, NAMESPACE),
            observer,
            rng,
            created: 0,
            deleted: HashSet::new(),
        })
    }

    /// How many pods were created so far.
    pub fn created(&self) -> usize {
        self.created
    }

    /// Creates `count` pods at a hundred a second, and then a few a second until
    /// `done`. What the API server refuses counts as a failure.
    pub async fn wave(&mut self, count: usize, done: CancellationToken) -> Result<()> {
        let mut requests = JoinSet::new();
        let mut ticks = tokio::time::interval(FAST);
        for n in 0.. {
            if n == count {
                ticks = tokio::time::interval(SLOW);
            }
            if n >= count && done.is_cancelled() {
                break;
            }
            ticks.tick().await;
            let (pods, pod) = (self.pods.clone(), serde_json::from_value(self.next())?);
            requests.spawn(async move {
                pods.create(&PostParams::default(), &pod).await?;
                anyhow::Ok(())
            });
            if let Some((name, grace)) = self.surplus() {
                let pods = self.pods.clone();
                requests.spawn(async move {
                    let params = DeleteParams::default().grace_period(grace);
                    pods.delete(&name, &params).await?;
                    Ok(())
                });
            }
            while let Some(ended) = requests.try_join_next() {
                ended??;
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
        // Nobody sends heartbeats for made-up nodes.
        pod["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
        pod
    }

    /// A pod to delete, and its grace period, where there are enough. Mostly one
    /// that is bound: that makes room.
    fn surplus(&mut self) -> Option<(String, u32)> {
        for (begins, most, grace) in [(RUN, RUNNING, 1), (MADE_UP, LIVE, 0)] {
            let mut live = self.observer.pods(begins);
            live.retain(|pod| !self.deleted.contains(&pod.name));
            if live.len() <= most {
                continue;
            }
            let mut choice: Vec<&Seen> = live.iter().filter(|pod| pod.node.is_some()).collect();
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
        let deleted = live.map(|pod| async {
            let params = DeleteParams::default().grace_period(0);
            self.pods.delete(&pod.name, &params).await?;
            Ok(())
        });
        join_all(deleted).await.into_iter().collect()
    }
}
