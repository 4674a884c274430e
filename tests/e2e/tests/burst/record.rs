//! When pods were seen bound and seen gone, by a watch of their own.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use aliquot_cluster::until;
use aliquot_cluster::wait::{PATIENCE, eventually};
use aliquot_e2e::stack::Stack;
use anyhow::{Context as _, Result};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client};
use parking_lot::Mutex;
use serde_json::Value;

/// Requests under way at one time.
const CONNECTIONS: usize = 16;

/// Moments by the pods' names.
#[derive(Debug, Default)]
struct Moments {
    bound: HashMap<String, Instant>,
    gone: HashMap<String, Instant>,
}

/// A running watch of one namespace's bound pods; ends with this value.
pub(crate) struct Record {
    seen: Arc<Mutex<Moments>>,
    task: tokio::task::JoinHandle<()>,
}

impl Record {
    pub(crate) fn start(client: Client, namespace: &str) -> Self {
        let seen: Arc<Mutex<Moments>> = Arc::default();
        let writes = seen.clone();
        let api: Api<PartialObjectMeta<Pod>> = Api::namespaced(client, namespace);
        let task = tokio::spawn(async move {
            let bound = watcher::Config::default().fields("spec.nodeName!=");
            let mut events = pin!(watcher::watcher(api, bound));
            while let Some(event) = events.next().await {
                let now = Instant::now();
                let mut seen = writes.lock();
                match event {
                    Ok(Event::Apply(pod) | Event::InitApply(pod)) => {
                        let name = pod.metadata.name.unwrap_or_default();
                        seen.bound.entry(name).or_insert(now);
                    }
                    Ok(Event::Delete(pod)) => {
                        let name = pod.metadata.name.unwrap_or_default();
                        seen.gone.entry(name).or_insert(now);
                    }
                    Ok(Event::Init | Event::InitDone) | Err(_) => {}
                }
            }
        });
        Self { seen, task }
    }

    /// Waits until this many pods were seen bound in all.
    pub(crate) async fn bound(&self, count: usize) -> Result<()> {
        eventually(PATIENCE, &format!("{count} bound pods"), || async {
            let found = self.seen.lock().bound.len();
            until!(found >= count, "{found}");
            Ok(Some(()))
        })
        .await
    }

    /// Every moment at which a pod was bound, in order.
    pub(crate) fn bindings(&self) -> Vec<Instant> {
        sorted(&self.seen.lock().bound)
    }

    /// Every moment at which a bound pod went, in order.
    pub(crate) fn ends(&self) -> Vec<Instant> {
        sorted(&self.seen.lock().gone)
    }

    /// When this pod was bound.
    pub(crate) fn is_bound(&self, name: &str) -> bool {
        self.seen.lock().bound.contains_key(name)
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn sorted(moments: &HashMap<String, Instant>) -> Vec<Instant> {
    let mut moments: Vec<_> = moments.values().copied().collect();
    moments.sort_unstable();
    moments
}

/// Creates the pods through several connections.
pub(crate) async fn create(client: &Client, namespace: &str, pods: Vec<Value>) -> Result<()> {
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    stream::iter(pods)
        .map(|pod| {
            let api = api.clone();
            async move {
                let pod: Pod = serde_json::from_value(pod)?;
                let created = api.create(&PostParams::default(), &pod).await;
                created.map(drop).context("create a pod")
            }
        })
        .buffer_unordered(CONNECTIONS)
        .try_collect()
        .await
}

/// A pod with a share that takes a tenth of a GPU, complete as the webhook
/// would make it.
pub(crate) fn pod(namespace: &str, name: &str) -> Value {
    let limits = [("gpu", "1"), ("gpumem", "8192"), ("gpucores", "10")];
    let mut pod = aliquot_e2e::pods::simple(namespace, name, &limits);
    pod["spec"]["schedulerName"] = "aliquot-scheduler".into();
    pod
}

/// How many bind calls found their node full.
pub(crate) async fn conflicts(stack: &Stack) -> Result<f64> {
    let address = stack.address(aliquot_e2e::stack::Kind::Scheduler);
    let labels = ["verb=\"bind\"", "outcome=\"conflict\""];
    aliquot_e2e::http::metric(address, "aliquot_scheduler_calls_total", &labels).await
}
