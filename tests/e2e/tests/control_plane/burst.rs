//! As many pods as there are shares, created before the last of the capacity.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_cluster::until;
use aliquot_cluster::wait::{PATIENCE, eventually};
use aliquot_e2e::figures::{print_line, report};
use aliquot_e2e::http::metric;
use aliquot_e2e::pods::simple;
use aliquot_e2e::pool::{Pool, Shape};
use aliquot_e2e::stack::{Kind, Stack};
use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client};
use parking_lot::Mutex;
use tokio::task::JoinHandle;

/// Twenty shares a node, limited by the GPUs' memory. With only twenty replicas kube-scheduler
/// would refuse pods by itself.
const SHAPE: Shape = Shape {
    gpus: 2,
    replicas: 20,
};
const SHARES: usize = 20;
/// Nodes that are there before the pods, and after them.
const NODES: usize = 50;
const PODS: usize = 2 * NODES * SHARES;
/// Longest time in which pods wait and none is bound: kube-scheduler's longest pause is 10 s.
const STALL: Duration = Duration::from_secs(20);
const CONNECTIONS: usize = 16;

pub(crate) async fn two_thousand(stack: Arc<Stack>) -> Result<()> {
    stack.ledger_is_empty().await?;
    let client = stack.cluster.admin()?;
    let nodes =
        |name: &str| -> Vec<_> { (0..NODES).map(|n| (format!("{name}-{n}"), SHAPE)).collect() };
    let first = Pool::open(&stack, "burst", &nodes("burst")).await?;
    let record = Record::start(client.clone(), first.name);
    let before = conflicts(&stack).await?;
    let start = Instant::now();
    create(&client, first.name).await?;
    record.wait(PODS / 2).await?;
    report(
        "1,000 of 2,000 pods bound, from the first one's creation",
        start.elapsed(),
    );
    eventually(PATIENCE, "the others to be refused", || async {
        let address = stack.address(Kind::Scheduler);
        let refused = metric(address, "aliquot_scheduler_refused_pods", &[]).await?;
        until!(
            format!("{refused:.0}") == (PODS / 2).to_string(),
            "{refused}"
        );
        Ok(Some(()))
    })
    .await?;

    let second = Pool::open(&stack, "late", &nodes("late")).await?;
    let appeared = Instant::now();
    record.wait(PODS).await?;
    let bindings = record.bindings();
    let last = bindings.last().copied().unwrap_or(appeared);
    report(
        "the other 1,000 bound, from the last capacity",
        last.saturating_duration_since(appeared),
    );
    let waits = bindings.windows(2).filter(|pair| pair[1] > appeared);
    let stall = waits
        .map(|pair| pair[1] - pair[0].max(appeared))
        .max()
        .unwrap_or_default();
    report("longest time with waiting pods and no Binding then", stall);
    ensure!(stall < STALL, "{stall:?}, allowed {STALL:?}");
    let met = conflicts(&stack).await? - before;
    print_line(&format!("{met} of {PODS} Bindings met a full node"));
    ensure!(
        met * 100.0 < f64::from(u32::try_from(PODS)?),
        "{met} conflicts"
    );
    let ledger = stack.ledger_agrees().await?;
    ensure!(ledger.pods.len() == PODS, "{} allocated", ledger.pods.len());
    drop(record);
    first.close().await?;
    second.close().await
}

/// Creates all pods through several connections, each with a tenth of a GPU.
async fn create(client: &Client, namespace: &str) -> Result<()> {
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let limits = [("gpu", "1"), ("gpumem", "8192"), ("gpucores", "10")];
    stream::iter(0..PODS)
        .map(|n| {
            let api = api.clone();
            async move {
                let mut pod = simple(namespace, &format!("p{n}"), &limits);
                pod["spec"]["schedulerName"] = "aliquot-scheduler".into();
                let pod: Pod = serde_json::from_value(pod)?;
                let created = api.create(&PostParams::default(), &pod).await;
                created.map(drop).context("create a pod")
            }
        })
        .buffer_unordered(CONNECTIONS)
        .try_collect()
        .await
}

/// How many bind calls found their node full.
async fn conflicts(stack: &Stack) -> Result<f64> {
    let labels = ["verb=\"bind\"", "outcome=\"conflict\""];
    let address = stack.address(Kind::Scheduler);
    metric(address, "aliquot_scheduler_calls_total", &labels).await
}

/// When each pod of a namespace was seen bound, by a watch that ends with this value.
struct Record {
    bound: Arc<Mutex<BTreeMap<String, Instant>>>,
    task: JoinHandle<()>,
}

impl Record {
    fn start(client: Client, namespace: &str) -> Self {
        let bound = Arc::<Mutex<BTreeMap<String, Instant>>>::default();
        let writes = bound.clone();
        let api: Api<PartialObjectMeta<Pod>> = Api::namespaced(client, namespace);
        let task = tokio::spawn(async move {
            let config = watcher::Config::default().fields("spec.nodeName!=");
            let mut events = pin!(watcher::watcher(api, config));
            while let Some(event) = events.next().await {
                if let Ok(Event::Apply(pod) | Event::InitApply(pod)) = event {
                    let name = pod.metadata.name.unwrap_or_default();
                    writes.lock().entry(name).or_insert_with(Instant::now);
                }
            }
        });
        Self { bound, task }
    }

    /// Waits until this many pods were seen bound in all.
    async fn wait(&self, count: usize) -> Result<()> {
        eventually(PATIENCE, &format!("{count} bound pods"), || async {
            let found = self.bound.lock().len();
            until!(found >= count, "{found}");
            Ok(Some(()))
        })
        .await
    }

    /// Every moment at which a pod was bound, in order.
    fn bindings(&self) -> Vec<Instant> {
        let mut moments: Vec<_> = self.bound.lock().values().copied().collect();
        moments.sort_unstable();
        moments
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.task.abort();
    }
}
