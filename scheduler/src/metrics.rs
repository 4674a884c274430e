//! The scheduler's metrics, all declared here.
//!
//! Fed by: the verbs and the tasks; gauges are read from the books at scrape time.
//! Must not: carry names of pods (bounded cardinality).

use std::sync::Arc;
use std::time::Duration;

use aliquot_k8s::event::Notes;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::books::Books;
use crate::leader::Leader;

/// Labels of an extender call.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Call {
    /// The verb; `prioritize_cpu_only` is that of the second, opt-in entry.
    pub verb: &'static str,
    /// ok, refused, conflict, gone or error.
    pub outcome: &'static str,
}

/// Counters and histograms; clones share their values.
#[derive(Clone, Debug)]
pub struct Metrics {
    calls: Family<Call, Counter>,
    seconds: Family<Call, Histogram>,
    /// Pods woken because they fit again.
    pub nudges: Counter,
    /// Nodes on which the self-check found a difference.
    pub self_check_differences: Counter,
}

/// Upper bounds in seconds, 50 µs to 3.3 s.
fn buckets() -> Histogram {
    Histogram::new((0..17).map(|power| 0.000_05 * f64::powi(2.0, power)))
}

impl Metrics {
    /// Registers everything.
    pub fn new(registry: &mut Registry, books: Arc<Books>, notes: Notes, leader: Leader) -> Self {
        let metrics = Self {
            calls: Family::default(),
            seconds: Family::new_with_constructor(buckets as fn() -> Histogram),
            nudges: Counter::default(),
            self_check_differences: Counter::default(),
        };
        let scheduler = registry.sub_registry_with_prefix("aliquot_scheduler");
        scheduler.register("calls", "Extender calls", metrics.calls.clone());
        scheduler.register(
            "call_seconds",
            "Time of extender calls",
            metrics.seconds.clone(),
        );
        scheduler.register(
            "nudges",
            "Refused pods woken because they fit again",
            metrics.nudges.clone(),
        );
        scheduler.register(
            "self_check_differences",
            "Nodes whose books differed from recomputed ones",
            metrics.self_check_differences.clone(),
        );
        scheduler.register_collector(Box::new(BooksCollector {
            books,
            notes,
            leader,
        }));
        metrics
    }

    /// Counts one call.
    pub fn call(&self, verb: &'static str, outcome: &'static str, took: Duration) {
        let call = Call { verb, outcome };
        self.calls.get_or_create(&call).inc();
        self.seconds
            .get_or_create(&call)
            .observe(took.as_secs_f64());
    }
}

#[derive(Debug)]
struct BooksCollector {
    books: Arc<Books>,
    notes: Notes,
    leader: Leader,
}

impl Collector for BooksCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let (waiting, refused) = self.books.waiting_counts();
        let (nodes, confirmed, reserved) = self.books.read(|ledger| {
            let holding = || ledger.bookings().filter(|(_, b)| b.holds());
            let confirmed = holding().filter(|(_, b)| b.confirmed).count();
            let nodes = ledger.cluster().iter();
            let nodes = nodes.filter(|(.., node)| node.inventory.is_some());
            (nodes.count(), confirmed, holding().count() - confirmed)
        });
        let dropped = usize::try_from(self.notes.dropped()).unwrap_or(usize::MAX);
        for (name, help, value) in [
            ("nodes", "Nodes with an inventory in the books", nodes),
            ("bookings", "Bound pods in the books", confirmed),
            (
                "reservations",
                "Pods booked whose binding the watch has not shown",
                reserved,
            ),
            (
                "waiting_pods",
                "Pods that ask for a share and are not bound",
                waiting,
            ),
            ("refused_pods", "Waiting pods that nothing fits", refused),
            (
                "leads",
                "1 while this replica may bind",
                usize::from(self.leader.fault().is_none()),
            ),
            (
                "events_dropped",
                "Events that found the queue full",
                dropped,
            ),
        ] {
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        Ok(())
    }
}
