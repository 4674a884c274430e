//! One run: pods are created through several connections as fast as the API server accepts them,
//! until the last one is bound.

use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, Event};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::cluster::{BenchCluster, CONNECTIONS, post};

/// A plain extended resource.
pub(super) const PLAIN: &str = "example.com/plain";
/// Deadline of a run.
const DEADLINE: Duration = Duration::from_mins(3);
/// Events that this program writes concurrently, as our scheduler does.
const WRITERS: usize = 4;

/// The kind of pods of a run; also the name of their namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Workload {
    /// One extended resource, no extender.
    Plain,
    /// A share of a GPU, our extender.
    Share,
    /// The same, and all but the count in the annotation (`webhook.requestAs: annotation`).
    Annotation,
}

pub(super) const WORKLOADS: [Workload; 3] =
    [Workload::Plain, Workload::Share, Workload::Annotation];
/// `aliquot.dev/request` of the pods that have it.
const REQUEST: &str = r#"{"v":1,"containers":{"main":{"memory":3000,"cores":5}}}"#;

impl Workload {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Share => "share",
            Self::Annotation => "annotation",
        }
    }

    fn has_extender(self) -> bool {
        matches!(self, Self::Share | Self::Annotation)
    }

    pub(super) fn pod(self, name: &str) -> Value {
        let limits = match self {
            Self::Plain => json!({PLAIN: "1"}),
            Self::Share => {
                json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "5"})
            }
            Self::Annotation => json!({"nvidia.com/gpu": "1"}),
        };
        let annotations = if self == Self::Annotation {
            json!({"aliquot.dev/request": REQUEST})
        } else {
            json!({})
        };
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": self.name(), "annotations": annotations},
            "spec": {"schedulerName": "aliquot-scheduler", "containers": [
                {"name": "main", "image": "localhost/none:1", "resources": {"limits": limits}},
            ]},
        })
    }
}

/// Runs once with this many pods; how long it took.
pub(super) async fn run(
    cluster: &BenchCluster,
    workload: Workload,
    run: usize,
    pods: usize,
) -> Result<Duration> {
    let ours = if workload.has_extender() {
        Some(cluster.start_scheduler().await?)
    } else {
        None
    };
    let start = Instant::now();
    let (bound_tx, bound_rx) = mpsc::unbounded_channel();
    let created = stream::iter(0..pods)
        .map(|number| {
            let pod = workload.pod(&format!("t{run}-{number}"));
            let path = format!("/api/v1/namespaces/{}/pods", workload.name());
            async move { post(&cluster.client, &path, &pod).await }
        })
        .buffer_unordered(CONNECTIONS)
        .try_for_each(|()| async { Ok(()) });
    let written = write_events(cluster, workload, bound_rx);
    let all = async {
        let (end, (), ()) = tokio::try_join!(
            all_bound(cluster, workload, run, pods, bound_tx),
            created,
            written
        )?;
        Ok::<_, anyhow::Error>(end)
    };
    let end = tokio::time::timeout(DEADLINE, all).await;
    let end = end.with_context(|| format!("run {run} of {}", workload.name()))??;
    if let Some(part) = ours {
        no_event_dropped(cluster).await?;
        part.terminate(DEADLINE).await?;
    }
    Ok(end - start)
}

/// When the watch shows the last pod of the run as bound; each one is sent to `bound_tx`.
async fn all_bound(
    cluster: &BenchCluster,
    workload: Workload,
    run: usize,
    pods: usize,
    bound_tx: mpsc::UnboundedSender<PartialObjectMeta<Pod>>,
) -> Result<Instant> {
    let api: Api<PartialObjectMeta<Pod>> = Api::namespaced(cluster.client.clone(), workload.name());
    let config = watcher::Config::default().fields("spec.nodeName!=");
    let mut bound = pin!(watcher::watcher(api, config));
    let prefix = format!("t{run}-");
    let mut bound_names = std::collections::HashSet::new();
    while bound_names.len() < pods {
        let event = bound.next().await.context("the watch ended")??;
        let (Event::Apply(pod) | Event::InitApply(pod)) = event else {
            continue;
        };
        let name = pod.metadata.name.clone().unwrap_or_default();
        if name.starts_with(&prefix) && bound_names.insert(name) {
            bound_tx.send(pod)?;
        }
    }
    Ok(Instant::now())
}

/// The second event of each plain pod, as our scheduler writes it for its own.
async fn write_events(
    cluster: &BenchCluster,
    workload: Workload,
    bound_rx: mpsc::UnboundedReceiver<PartialObjectMeta<Pod>>,
) -> Result<()> {
    let bound = stream::unfold(bound_rx, |mut bound| async {
        bound.recv().await.map(|pod| (pod, bound))
    });
    bound
        .filter(|_| std::future::ready(!workload.has_extender()))
        .map(|pod| write_event(cluster, workload, pod))
        .buffer_unordered(WRITERS)
        .try_for_each(|()| async { Ok(()) })
        .await
}

async fn write_event(
    cluster: &BenchCluster,
    workload: Workload,
    pod: PartialObjectMeta<Pod>,
) -> Result<()> {
    let (name, uid) = (pod.metadata.name, pod.metadata.uid);
    let event = json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": format!("{}.allocated", name.as_deref().unwrap_or_default()), "namespace": workload.name()},
        "eventTime": k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime(k8s_openapi::jiff::Timestamp::now()),
        "regarding": {"apiVersion": "v1", "kind": "Pod", "namespace": workload.name(), "name": name, "uid": uid},
        "reason": "Allocated", "action": "Binding", "type": "Normal",
        "reportingController": "bench", "reportingInstance": "bench",
        "note": "Allocated on node gpu-worker-00000.example.internal: main GPU-00000000-0000-4000-8000-000000000000 (3000 MiB, cores 5)",
    });
    let path = format!(
        "/apis/events.k8s.io/v1/namespaces/{}/events",
        workload.name()
    );
    post(&cluster.client, &path, &event).await
}

/// A scheduler that drops events would have an advantage over the plain workloads.
async fn no_event_dropped(cluster: &BenchCluster) -> Result<()> {
    const DROPPED: &str = "aliquot_scheduler_events_dropped_total ";
    let metrics = cluster.get("metrics").await?;
    let line = metrics.lines().find(|line| line.starts_with(DROPPED));
    let line = line.with_context(|| format!("no metric {DROPPED}"))?;
    ensure!(line.ends_with(" 0"), "{line}");
    Ok(())
}
