//! Gauges that are read from the ledger at scrape time: of the process, and of every GPU.
//!
//! They are written from a snapshot, without a lock, and piece by piece: the text for 40,000 GPUs
//! has 30 MB.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use aliquot_core::quota::{Limit, NamespaceUsage};
use aliquot_core::top::{DeviceAmount, orphaned};
use aliquot_core::{Cluster, Mib, Percent};
use aliquot_k8s::event::EventSender;
use aliquot_k8s::watch::Freshness;
use aliquot_serve::admin::TextStream;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use tokio::time::Instant;

use crate::admission_policies::Compared;
use crate::leader::Leader;
use crate::ledger_cache::LedgerCache;
use crate::metrics::{self, MetricSpec, Metrics};

/// Slots whose lines are written at once.
const CHUNK: usize = 64;

#[derive(Debug)]
pub struct Gauges {
    cache: Arc<LedgerCache>,
    events: EventSender,
    leader: Leader,
    /// By the objects' kind.
    watches: [(&'static str, Freshness); 3],
    policies: Compared,
}

impl Gauges {
    pub fn new(
        cache: &Arc<LedgerCache>,
        events: &EventSender,
        leader: &Leader,
        watches: [(&'static str, Freshness); 3],
        policies: Compared,
    ) -> Self {
        Self {
            cache: cache.clone(),
            events: events.clone(),
            leader: leader.clone(),
            watches,
            policies,
        }
    }

    pub fn register(self, registry: &mut Registry) -> Metrics {
        let product = registry.sub_registry_with_prefix(metrics::PREFIX);
        let metrics = Metrics::new(product);
        product.register_collector(Box::new(self));
        metrics
    }

    fn values(&self) -> [(MetricSpec, usize); 8] {
        let (pending, refused) = self.cache.pending_counts();
        let (confirmed, reserved, assumed) = self.cache.read(|ledger| {
            let with_share = || ledger.pod_entries().filter(|(_, b)| b.uses_devices());
            let confirmed = with_share().filter(|(_, b)| b.is_confirmed()).count();
            let assumed = ledger.assumptions().count();
            (confirmed, with_share().count() - confirmed, assumed)
        });
        let cluster = self.cache.snapshot();
        let ours = || cluster.iter().filter(|(.., node)| node.inventory.is_some());
        [
            (metrics::LEADS, usize::from(self.leader.leads())),
            (metrics::NODES, ours().count()),
            (
                metrics::GPUS,
                ours().map(|(.., node)| node.devices.len()).sum(),
            ),
            (metrics::ALLOCATIONS, confirmed),
            (metrics::RESERVATIONS, reserved),
            (metrics::PENDING_PODS, pending),
            (metrics::REFUSED_PODS, refused),
            (metrics::ASSUMED, assumed),
        ]
    }
}

impl Collector for Gauges {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for (spec, value) in self.values() {
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            write(&mut encoder, &spec, &gauge)?;
        }
        write(
            &mut encoder,
            &metrics::EVENTS_DROPPED,
            &ConstCounter::new(self.events.dropped()),
        )?;
        let (name, help, unit) = metrics::WATCH_AGE.parts();
        let kind = prometheus_client::metrics::MetricType::Gauge;
        let mut family = encoder.encode_descriptor(name, help, unit.as_ref(), kind)?;
        for (kind, freshness) in &self.watches {
            if let Some(age) = freshness.age(Instant::now()) {
                let gauge = ConstGauge::new(age.as_secs_f64());
                gauge.encode(family.encode_family(&[("kind", *kind)])?)?;
            }
        }
        let (name, help, unit) = metrics::ADMISSION_POLICY_CHANGED.parts();
        let kind = prometheus_client::metrics::MetricType::Gauge;
        let mut family = encoder.encode_descriptor(name, help, unit.as_ref(), kind)?;
        for (object, is_changed) in self.policies.changed() {
            let gauge = ConstGauge::new(i64::from(is_changed));
            gauge.encode(family.encode_family(&[("object", object.as_str())])?)?;
        }
        self.quotas(&mut encoder)
    }
}

impl Gauges {
    /// The value of each limit of each quota, and what is used of it.
    fn quotas(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let spaces = self.cache.read(|ledger| ledger.namespaces().clone());
        let value = |spec: &MetricSpec, used: NamespaceUsage, limit: &Limit| match *spec {
            metrics::QUOTA_USED => used.on(limit.on),
            _ => Some(limit.most.allowed().into()),
        };
        for spec in [metrics::QUOTA_USED, metrics::QUOTA_LIMIT] {
            let (name, help, unit) = spec.parts();
            let kind = prometheus_client::metrics::MetricType::Gauge;
            let mut family = encoder.encode_descriptor(name, help, unit.as_ref(), kind)?;
            for (namespace, (used, quotas)) in spaces.quotas() {
                let limits = quotas
                    .iter()
                    .flat_map(|quota| quota.limits.iter().map(move |l| (quota, l)));
                for (quota, limit) in limits {
                    let Some(value) = value(&spec, used, limit) else {
                        continue;
                    };
                    let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
                    let labels = [
                        ("namespace", namespace.as_str()),
                        ("quota", &*quota.name),
                        ("resource", &*limit.key),
                    ];
                    gauge.encode(family.encode_family(&labels)?)?;
                }
            }
        }
        Ok(())
    }
}

fn write(
    encoder: &mut DescriptorEncoder<'_>,
    spec: &MetricSpec,
    metric: &impl EncodeMetric,
) -> Result<(), fmt::Error> {
    let (name, help, unit) = spec.parts();
    metric.encode(encoder.encode_descriptor(name, help, unit.as_ref(), metric.metric_type())?)
}

/// A metric of GPUs, and its value for a GPU where there is one.
type Column = (MetricSpec, fn(&Line) -> Option<String>);

struct Line {
    used: DeviceAmount,
    left: DeviceAmount,
    orphaned: DeviceAmount,
}

const COLUMNS: [Column; 8] = [
    (metrics::GPU_MEMORY_ALLOCATED, |line| {
        Some(bytes(line.used.memory))
    }),
    (metrics::GPU_MEMORY_FREE, |line| {
        Some(bytes(line.left.memory))
    }),
    (metrics::GPU_MEMORY_ORPHANED, |line| {
        (line.orphaned.replicas > 0).then(|| bytes(line.orphaned.memory))
    }),
    (metrics::GPU_CORES_ALLOCATED, |line| {
        Some(ratio(line.used.cores))
    }),
    (metrics::GPU_CORES_FREE, |line| Some(ratio(line.left.cores))),
    (metrics::GPU_CORES_ORPHANED, |line| {
        (line.orphaned.replicas > 0).then(|| ratio(line.orphaned.cores))
    }),
    (metrics::GPU_REPLICAS_ALLOCATED, |line| {
        Some(line.used.replicas.to_string())
    }),
    (metrics::GPU_REPLICAS_FREE, |line| {
        Some(line.left.replicas.to_string())
    }),
];

fn bytes(memory: Mib) -> String {
    memory.bytes().to_string()
}

fn ratio(cores: Percent) -> String {
    (f64::from(cores.0) / 100.0).to_string()
}

/// Writes the metrics of all GPUs for each scrape.
pub fn gpu_metrics(
    cache: Arc<LedgerCache>,
) -> impl Fn() -> TextStream + Clone + Send + Sync + 'static {
    move || Box::new(gpu_metrics_text(cache.snapshot()))
}

/// The metrics of every GPU as text, piece by piece.
pub fn gpu_metrics_text(cluster: Cluster) -> impl Iterator<Item = String> + Send {
    COLUMNS.into_iter().flat_map(move |(spec, value)| {
        let cluster = cluster.clone();
        let chunks = 0..cluster.slots().div_ceil(CHUNK);
        let lines = chunks.map(move |chunk| lines(&cluster, chunk, &spec, value));
        std::iter::once(spec.head()).chain(lines)
    })
}

fn lines(
    cluster: &Cluster,
    chunk: usize,
    spec: &MetricSpec,
    value: fn(&Line) -> Option<String>,
) -> String {
    let family = spec.family();
    let mut text = String::new();
    for slot in chunk * CHUNK..(chunk + 1) * CHUNK {
        let Some((name, node)) = cluster.named(slot) else {
            continue;
        };
        let Some(inventory) = &node.inventory else {
            continue;
        };
        for (place, (gpu, device)) in inventory.gpus.iter().zip(&node.devices).enumerate() {
            let mut left = DeviceAmount::left(device);
            if node.closed.is_some() {
                left = DeviceAmount::default();
            }
            let line = Line {
                used: node.counted_once(place).used.into(),
                left,
                orphaned: orphaned(inventory, &gpu.uuid),
            };
            if let Some(value) = value(&line) {
                let (node, uuid) = (escaped(name.as_str()), escaped(gpu.uuid.as_str()));
                let index = gpu.index;
                let _ = writeln!(
                    text,
                    "{family}{{node=\"{node}\",gpu=\"{uuid}\",index=\"{index}\"}} {value}"
                );
            }
        }
    }
    text
}

/// A label's value, escaped: an annotation may contain anything.
fn escaped(value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"");
    value.replace('\n', "\\n")
}

#[cfg(test)]
#[path = "gauges_tests.rs"]
mod tests;
