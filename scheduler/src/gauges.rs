//! What is read from the books at scrape time: gauges of the process, and those
//! of every card.
//!
//! Fed by: a snapshot of the books; no lock is held while text is written.
//! Must not: make the text of all cards at once; 40,000 cards are 30 MB of it.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use aliquot_core::quota::{Limit, Used};
use aliquot_core::top::{Amount, lingering};
use aliquot_core::{Cluster, Mib, Percent};
use aliquot_k8s::event::Notes;
use aliquot_k8s::watch::Freshness;
use aliquot_serve::admin::Pieces;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use tokio::time::Instant;

use crate::books::Books;
use crate::leader::Leader;
use crate::metrics::{self, Declared, Metrics};

/// Slots whose lines are made at once.
const CHUNK: usize = 64;

/// Gauges of the process.
#[derive(Debug)]
pub struct Gauges {
    books: Arc<Books>,
    notes: Notes,
    leader: Leader,
    /// By kind.
    watches: [(&'static str, Freshness); 3],
}

impl Gauges {
    /// Gauges of these.
    pub fn of(
        books: &Arc<Books>,
        notes: &Notes,
        leader: &Leader,
        watches: [(&'static str, Freshness); 3],
    ) -> Self {
        Self {
            books: books.clone(),
            notes: notes.clone(),
            leader: leader.clone(),
            watches,
        }
    }

    /// Registers them and the counters.
    pub fn register(self, registry: &mut Registry) -> Metrics {
        let product = registry.sub_registry_with_prefix(metrics::PREFIX);
        let metrics = Metrics::new(product);
        product.register_collector(Box::new(self));
        metrics
    }

    fn values(&self) -> [(Declared, usize); 8] {
        let (waiting, refused) = self.books.waiting_counts();
        let (confirmed, reserved) = self.books.read(|ledger| {
            let holding = || ledger.bookings().filter(|(_, b)| b.holds());
            let confirmed = holding().filter(|(_, b)| b.confirmed).count();
            (confirmed, holding().count() - confirmed)
        });
        let claims = self.books.claims.lock().all(Instant::now()).len();
        let cluster = self.books.snapshot();
        let ours = || cluster.iter().filter(|(.., node)| node.inventory.is_some());
        [
            (metrics::LEADS, usize::from(self.leader.fault().is_none())),
            (metrics::NODES, ours().count()),
            (
                metrics::GPUS,
                ours().map(|(.., node)| node.cards.len()).sum(),
            ),
            (metrics::BOOKINGS, confirmed),
            (metrics::RESERVATIONS, reserved),
            (metrics::WAITING_PODS, waiting),
            (metrics::REFUSED_PODS, refused),
            (metrics::SOFT_CLAIMS, claims),
        ]
    }
}

impl Collector for Gauges {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for (declared, value) in self.values() {
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            write(&mut encoder, &declared, &gauge)?;
        }
        write(
            &mut encoder,
            &metrics::EVENTS_DROPPED,
            &ConstCounter::new(self.notes.dropped()),
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
        self.quotas(&mut encoder)
    }
}

impl Gauges {
    /// What each limit of each quota allows, and what is used of it.
    fn quotas(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let spaces = self.books.read(|ledger| ledger.spaces().clone());
        let value = |declared: &Declared, used: Used, limit: &Limit| match *declared {
            metrics::QUOTA_USED => used.on(limit.on),
            _ => Some(limit.most.allowed().into()),
        };
        for declared in [metrics::QUOTA_USED, metrics::QUOTA_LIMIT] {
            let (name, help, unit) = declared.parts();
            let kind = prometheus_client::metrics::MetricType::Gauge;
            let mut family = encoder.encode_descriptor(name, help, unit.as_ref(), kind)?;
            for (namespace, (used, quotas)) in spaces.quotas() {
                let limits = quotas
                    .iter()
                    .flat_map(|quota| quota.limits.iter().map(move |l| (quota, l)));
                for (quota, limit) in limits {
                    let Some(value) = value(&declared, used, limit) else {
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
    declared: &Declared,
    metric: &impl EncodeMetric,
) -> Result<(), fmt::Error> {
    let (name, help, unit) = declared.parts();
    metric.encode(encoder.encode_descriptor(name, help, unit.as_ref(), metric.metric_type())?)
}

/// What is said of a card: the metric, and its value where there is one.
type Column = (Declared, fn(&Line) -> Option<String>);

struct Line {
    used: Amount,
    left: Amount,
    lingering: Amount,
}

const COLUMNS: [Column; 8] = [
    (metrics::GPU_MEMORY_BOOKED, |line| {
        Some(bytes(line.used.memory))
    }),
    (metrics::GPU_MEMORY_FREE, |line| {
        Some(bytes(line.left.memory))
    }),
    (metrics::GPU_MEMORY_LINGERING, |line| {
        (line.lingering.seats > 0).then(|| bytes(line.lingering.memory))
    }),
    (metrics::GPU_CORES_BOOKED, |line| {
        Some(ratio(line.used.cores))
    }),
    (metrics::GPU_CORES_FREE, |line| Some(ratio(line.left.cores))),
    (metrics::GPU_CORES_LINGERING, |line| {
        (line.lingering.seats > 0).then(|| ratio(line.lingering.cores))
    }),
    (metrics::GPU_SEATS_BOOKED, |line| {
        Some(line.used.seats.to_string())
    }),
    (metrics::GPU_SEATS_FREE, |line| {
        Some(line.left.seats.to_string())
    }),
];

fn bytes(memory: Mib) -> String {
    memory.bytes().to_string()
}

fn ratio(cores: Percent) -> String {
    (f64::from(cores.0) / 100.0).to_string()
}

/// Makes the text of all cards anew for each scrape.
pub fn cards(books: Arc<Books>) -> impl Fn() -> Pieces + Clone + Send + Sync + 'static {
    move || Box::new(of_cards(books.snapshot()))
}

/// The metrics of every card as text, piece by piece.
pub fn of_cards(cluster: Cluster) -> impl Iterator<Item = String> + Send {
    COLUMNS.into_iter().flat_map(move |(declared, value)| {
        let cluster = cluster.clone();
        let chunks = 0..cluster.slots().div_ceil(CHUNK);
        let lines = chunks.map(move |chunk| lines(&cluster, chunk, &declared, value));
        std::iter::once(declared.head()).chain(lines)
    })
}

fn lines(
    cluster: &Cluster,
    chunk: usize,
    declared: &Declared,
    value: fn(&Line) -> Option<String>,
) -> String {
    let family = declared.family();
    let mut text = String::new();
    for slot in chunk * CHUNK..(chunk + 1) * CHUNK {
        let Some((name, node)) = cluster.named(slot) else {
            continue;
        };
        let Some(inventory) = &node.inventory else {
            continue;
        };
        for (gpu, card) in inventory.gpus.iter().zip(&node.cards) {
            let mut left = Amount::left(card);
            if node.closed.is_some() {
                left = Amount::default();
            }
            let line = Line {
                used: card.sums.used.into(),
                left,
                lingering: lingering(inventory, &gpu.uuid),
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

/// A label's value: an annotation may hold anything.
fn escaped(value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"");
    value.replace('\n', "\\n")
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
