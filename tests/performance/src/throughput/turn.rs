//! One turn: pods are created through several connections as fast as the API
//! server takes them, until the last one is bound.

use std::pin::pin;
use std::time::{Duration, Instant};

use aliquot_cluster::Part;
use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, Event};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::rig::{CONNECTIONS, Rig, post};
use crate::cpu;

/// Plain extended resources.
pub(super) const PLAIN: [&str; 3] = [
    "example.com/plain",
    "example.com/plain-memory",
    "example.com/plain-cores",
];
/// Longest turn.
const DEADLINE: Duration = Duration::from_mins(3);
/// Events that this program writes at one time, as our scheduler does.
const WRITERS: usize = 4;

/// Whose turn it is; also the name of its namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// One extended resource, no extender.
    Plain,
    /// As many extended resources as a share has, no extender.
    Plain3,
    /// A share of a GPU, our extender.
    Share,
}

pub(super) const SIDES: [Side; 3] = [Side::Plain, Side::Plain3, Side::Share];

impl Side {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Plain3 => "plain3",
            Self::Share => "share",
        }
    }

    fn pod(self, name: &str) -> Value {
        let limits = match self {
            Self::Plain => json!({PLAIN[0]: "1"}),
            Self::Plain3 => json!({PLAIN[0]: "1", PLAIN[1]: "1", PLAIN[2]: "1"}),
            Self::Share => {
                json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "5"})
            }
        };
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": self.name()},
            "spec": {"schedulerName": "aliquot-scheduler", "containers": [
                {"name": "main", "image": "localhost/none:1", "resources": {"limits": limits}},
            ]},
        })
    }
}

/// What a turn took.
pub(super) struct Took {
    pub(super) took: Duration,
    /// CPU time of kube-scheduler, the API server, and our scheduler.
    pub(super) cpu: [Duration; 3],
}

/// Takes a turn with this many pods.
pub(super) async fn take(rig: &Rig, side: Side, turn: usize, pods: usize) -> Result<Took> {
    let ours = match side {
        Side::Plain | Side::Plain3 => None,
        Side::Share => Some(rig.start_scheduler().await?),
    };
    let before = spent(rig, ours.as_ref())?;
    let start = Instant::now();
    let (bound_tx, bound_rx) = mpsc::unbounded_channel();
    let created = stream::iter(0..pods)
        .map(|number| {
            let pod = side.pod(&format!("t{turn}-{number}"));
            let path = format!("/api/v1/namespaces/{}/pods", side.name());
            async move { post(&rig.client, &path, &pod).await }
        })
        .buffer_unordered(CONNECTIONS)
        .try_for_each(|()| async { Ok(()) });
    let written = write_events(rig, side, bound_rx);
    let all = async {
        let (end, (), ()) =
            tokio::try_join!(all_bound(rig, side, turn, pods, bound_tx), created, written)?;
        Ok::<_, anyhow::Error>(end)
    };
    let end = tokio::time::timeout(DEADLINE, all).await;
    let end = end.with_context(|| format!("turn {turn} of {}", side.name()))??;
    let after = spent(rig, ours.as_ref())?;
    if let Some(part) = ours {
        no_event_dropped(rig).await?;
        part.terminate(DEADLINE).await?;
    }
    Ok(Took {
        took: end - start,
        cpu: std::array::from_fn(|of| after[of].saturating_sub(before[of])),
    })
}

fn spent(rig: &Rig, ours: Option<&Part>) -> Result<[Duration; 3]> {
    let ours = ours.map_or(Ok(Duration::ZERO), |part| cpu::spent(part.pid()));
    Ok([
        cpu::spent(rig.cluster.pid("scheduler")?)?,
        cpu::spent(rig.cluster.pid("apiserver")?)?,
        ours?,
    ])
}

/// When the last pod of the turn was seen bound; each one is reported.
async fn all_bound(
    rig: &Rig,
    side: Side,
    turn: usize,
    pods: usize,
    bound_tx: mpsc::UnboundedSender<PartialObjectMeta<Pod>>,
) -> Result<Instant> {
    let api: Api<PartialObjectMeta<Pod>> = Api::namespaced(rig.client.clone(), side.name());
    let config = watcher::Config::default().fields("spec.nodeName!=");
    let mut bound = pin!(watcher::watcher(api, config));
    let prefix = format!("t{turn}-");
    let mut seen = std::collections::HashSet::new();
    while seen.len() < pods {
        let event = bound.next().await.context("the watch ended")??;
        let (Event::Apply(pod) | Event::InitApply(pod)) = event else {
            continue;
        };
        let name = pod.metadata.name.clone().unwrap_or_default();
        if name.starts_with(&prefix) && seen.insert(name) {
            bound_tx.send(pod)?;
        }
    }
    Ok(Instant::now())
}

/// The second event of each plain pod, as our scheduler writes it for its own.
async fn write_events(
    rig: &Rig,
    side: Side,
    bound_rx: mpsc::UnboundedReceiver<PartialObjectMeta<Pod>>,
) -> Result<()> {
    let bound = stream::unfold(bound_rx, |mut bound| async {
        bound.recv().await.map(|pod| (pod, bound))
    });
    bound
        .filter(|_| std::future::ready(side != Side::Share))
        .map(|pod| write_event(rig, side, pod))
        .buffer_unordered(WRITERS)
        .try_for_each(|()| async { Ok(()) })
        .await
}

async fn write_event(rig: &Rig, side: Side, pod: PartialObjectMeta<Pod>) -> Result<()> {
    let (name, uid) = (pod.metadata.name, pod.metadata.uid);
    let event = json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": format!("{}.booked", name.as_deref().unwrap_or_default()), "namespace": side.name()},
        "eventTime": k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime(k8s_openapi::jiff::Timestamp::now()),
        "regarding": {"apiVersion": "v1", "kind": "Pod", "namespace": side.name(), "name": name, "uid": uid},
        "reason": "Booked", "action": "Binding", "type": "Normal",
        "reportingController": "bench", "reportingInstance": "bench",
        "note": "booked on gpu-worker-00000.example.internal: main GPU-00000000-0000-4000-8000-000000000000 (3000 MiB, cores 5)",
    });
    let path = format!("/apis/events.k8s.io/v1/namespaces/{}/events", side.name());
    post(&rig.client, &path, &event).await
}

/// A scheduler that drops events would have it easier than the plain side.
async fn no_event_dropped(rig: &Rig) -> Result<()> {
    const DROPPED: &str = "aliquot_scheduler_events_dropped_total ";
    let metrics = rig.get("metrics").await?;
    let line = metrics.lines().find(|line| line.starts_with(DROPPED));
    let line = line.with_context(|| format!("no metric {DROPPED}"))?;
    ensure!(line.ends_with(" 0"), "{line}");
    Ok(())
}
