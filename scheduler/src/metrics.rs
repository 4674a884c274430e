//! The scheduler's metrics. All are declared in one table, from which `docs/reference/metrics.md`
//! is generated; the counters are here, and [`crate::views::gauges`] reads the gauges at scrape time. No
//! label has the name of a pod, so that cardinality is bounded.

use std::fmt::Write as _;
use std::time::Duration;

use aliquot_core::{Reason, Refusal};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry, Unit};

/// The prefix of every name.
pub const PREFIX: &str = "aliquot_scheduler";

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows; its samples end in `_total`.
    Counter,
    /// A value of the moment.
    Gauge,
    /// Samples end in `_bucket`, `_sum` and `_count`.
    Histogram,
}

impl Kind {
    /// As `OpenMetrics` writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// One metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricSpec {
    /// Without prefix, unit and `_total`.
    name: &'static str,
    pub(crate) kind: Kind,
    /// Empty for a plain number.
    unit: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
}

macro_rules! declared {
    ($($constant:ident = $kind:ident $name:literal $unit:literal [$($label:literal),*] $help:literal;)*) => {
        $(
            #[doc = $help]
            pub const $constant: MetricSpec = MetricSpec {
                name: $name,
                kind: Kind::$kind,
                unit: $unit,
                labels: &[$($label),*],
                help: $help,
            };
        )*
        /// Every metric, in the order of the reference.
        pub const ALL: &[MetricSpec] = &[$($constant),*];
    };
}

declared! {
    CALLS = Counter "calls" "" ["verb", "outcome"]
        "Extender calls by outcome; `conflict` of `bind` is a node that was full by then";
    CALL = Histogram "call" "seconds" ["verb", "outcome"]
        "Duration of extender calls";
    REFUSALS = Counter "refusals" "" ["reason"]
        "Refused filter calls in which a GPU or node was refused for this reason";
    REQUEUES = Counter "requeues" "" []
        "Refused pods requeued because they fit again";
    PREEMPTIONS = Counter "preemptions" "" []
        "Preemptions whose first victim was evicted";
    SELF_CHECK_DIFFERENCES = Counter "self_check_differences" "" []
        "Entries of the ledger that differed from recomputed ones; anything but 0 is a bug";
    EVENTS_DROPPED = Counter "events_dropped" "" []
        "Events dropped because the queue was full";
    LEADS = Gauge "leads" "" []
        "1 while this replica leads and may bind";
    WATCH_AGE = Gauge "watch_age" "seconds" ["kind"]
        "Time since the last event of the watch; absent before the first list";
    ADMISSION_POLICY_CHANGED = Gauge "admission_policy_changed" "" ["object"]
        "1 for a policy of the chart, or a binding, that is missing, not as the chart wrote it, or not comparable for five minutes";
    NODES = Gauge "nodes" "" []
        "Nodes with an inventory";
    GPUS = Gauge "gpus" "" []
        "GPUs in the inventories";
    ALLOCATIONS = Gauge "allocations" "" []
        "Bound pods with an allocation";
    RESERVATIONS = Gauge "reservations" "" []
        "Pods with a reservation that the watch has not confirmed";
    PENDING_PODS = Gauge "pending_pods" "" []
        "Pods that request a share and are not bound";
    REFUSED_PODS = Gauge "refused_pods" "" []
        "Pending pods that fit on no node";
    ASSUMED = Gauge "assumed_pods" "" []
        "Pods that a share is kept for before their Binding: filter named a node, or victims are evicted";
    QUOTA_USED = Gauge "quota_used" "" ["namespace", "quota", "resource"]
        "MiB or percent of compute allocated to the namespace's pods, for each limit; absent while an allocation there is unreadable";
    QUOTA_LIMIT = Gauge "quota_limit" "" ["namespace", "quota", "resource"]
        "Value of the limit; 0 for one that is invalid";
    GPU_MEMORY_ALLOCATED = Gauge "gpu_memory_allocated" "bytes" ["node", "gpu", "index"]
        "Allocated memory of a GPU, orphaned shares included";
    GPU_MEMORY_FREE = Gauge "gpu_memory_free" "bytes" ["node", "gpu", "index"]
        "Memory that can still be allocated; 0 for a GPU that takes no new share";
    GPU_MEMORY_ORPHANED = Gauge "gpu_memory_orphaned" "bytes" ["node", "gpu", "index"]
        "Memory of shares whose processes outlive their pods; only for GPUs that have some";
    GPU_CORES_ALLOCATED = Gauge "gpu_cores_allocated" "ratio" ["node", "gpu", "index"]
        "Allocated compute of a GPU; 1 is all of it";
    GPU_CORES_FREE = Gauge "gpu_cores_free" "ratio" ["node", "gpu", "index"]
        "Compute that can still be allocated; 0 for a GPU that takes no new share";
    GPU_CORES_ORPHANED = Gauge "gpu_cores_orphaned" "ratio" ["node", "gpu", "index"]
        "Compute of shares whose processes outlive their pods; only for GPUs that have some";
    GPU_REPLICAS_ALLOCATED = Gauge "gpu_replicas_allocated" "" ["node", "gpu", "index"]
        "Allocated shares of a GPU";
    GPU_REPLICAS_FREE = Gauge "gpu_replicas_free" "" ["node", "gpu", "index"]
        "Shares that the GPU can still take; 0 for one that takes no new share";
}

impl MetricSpec {
    /// The family's name: without the suffixes of its samples.
    pub fn family(&self) -> String {
        let unit = if self.unit.is_empty() { "" } else { "_" };
        format!("{PREFIX}_{}{unit}{}", self.name, self.unit)
    }

    /// Name, help and unit, as the library expects them.
    pub(crate) fn parts(&self) -> (&'static str, &'static str, Option<Unit>) {
        let unit = match self.unit {
            "" => None,
            "seconds" => Some(Unit::Seconds),
            "bytes" => Some(Unit::Bytes),
            other => Some(Unit::Other(other.to_owned())),
        };
        (self.name, self.help, unit)
    }

    /// The lines before the samples.
    pub fn head(&self) -> String {
        let (family, kind) = (self.family(), self.kind.name());
        let mut head = format!("# HELP {family} {}.\n# TYPE {family} {kind}\n", self.help);
        if !self.unit.is_empty() {
            let _ = writeln!(head, "# UNIT {family} {}", self.unit);
        }
        head
    }

    fn register(&self, registry: &mut Registry, metric: impl Metric) {
        match self.parts() {
            (name, help, Some(unit)) => registry.register_with_unit(name, help, unit, metric),
            (name, help, None) => registry.register(name, help, metric),
        }
    }
}

/// `docs/reference/metrics.md`.
pub fn reference() -> String {
    let mut text = String::from(
        "# Metrics of the scheduler\n\n\
         Generated from `scheduler/src/metrics.rs` by `make reference`; a test compares.\n\n\
         `GET /metrics` returns all of them as OpenMetrics text.\n\
         Those with the label `gpu` are written during the scrape, so that 40,000 GPUs need no memory for them.\n\n\
         | metric | type | labels | meaning |\n|---|---|---|---|\n",
    );
    for metric in ALL {
        let end = if metric.kind == Kind::Counter {
            "_total"
        } else {
            ""
        };
        let _ = writeln!(
            text,
            "| `{}{end}` | {} | {} | {} |",
            metric.family(),
            metric.kind.name(),
            metric.labels.join(", "),
            metric.help
        );
    }
    let verbs: Vec<_> = OUTCOMES.iter().map(|(verb, _)| *verb).collect();
    let mut outcomes: Vec<_> = OUTCOMES.iter().flat_map(|(_, all)| *all).copied().collect();
    outcomes.sort_unstable();
    outcomes.dedup();
    let reasons: Vec<_> = Reason::ALL.iter().map(|reason| reason.name()).collect();
    text.push('\n');
    for (label, values) in [
        ("verb", &verbs[..]),
        ("outcome", &outcomes),
        ("reason", &reasons),
        ("kind", &WATCHED),
    ] {
        let _ = writeln!(text, "- `{label}` is one of: {}.", values.join(", "));
    }
    text
}

/// Labels of an extender call.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct CallLabels {
    /// The verb; `prioritize_cpu_only` is that of the second, opt-in entry.
    pub verb: &'static str,
    /// ok, refused, conflict, gone or error.
    pub outcome: &'static str,
}

/// The watches that feed the ledger, by the API's resource names.
pub const WATCHED: [&str; 3] = ["pods", "nodes", "resourcequotas"];

/// Every pair that occurs, so that each is exported from the start.
const OUTCOMES: [(&str, &[&str]); 5] = [
    ("filter", &["ok", "refused", "error"]),
    ("prioritize", &["ok", "error"]),
    ("prioritize_cpu_only", &["ok", "error"]),
    ("preempt", &["ok", "error"]),
    ("bind", &["ok", "conflict", "gone", "error"]),
];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusalLabels {
    reason: &'static str,
}

/// Counters and histograms; clones share their values.
#[derive(Clone, Debug)]
pub struct Metrics {
    calls: Family<CallLabels, Counter>,
    seconds: Family<CallLabels, Histogram>,
    refusals: Family<RefusalLabels, Counter>,
    /// Pods requeued because they fit again.
    pub requeues: Counter,
    /// Preemptions whose first victim was evicted.
    pub preemptions: Counter,
    /// Entries of the ledger that differed in a self-check.
    pub self_check_differences: Counter,
}

/// Upper bounds in seconds, 50 µs to 3.3 s.
fn buckets() -> Histogram {
    Histogram::new((0..17).map(|power| 0.000_05 * f64::powi(2.0, power)))
}

impl Metrics {
    /// Registers them.
    pub fn new(registry: &mut Registry) -> Self {
        let metrics = Self {
            calls: Family::default(),
            seconds: Family::new_with_constructor(buckets as fn() -> Histogram),
            refusals: Family::default(),
            requeues: Counter::default(),
            preemptions: Counter::default(),
            self_check_differences: Counter::default(),
        };
        CALLS.register(registry, metrics.calls.clone());
        CALL.register(registry, metrics.seconds.clone());
        REFUSALS.register(registry, metrics.refusals.clone());
        REQUEUES.register(registry, metrics.requeues.clone());
        PREEMPTIONS.register(registry, metrics.preemptions.clone());
        SELF_CHECK_DIFFERENCES.register(registry, metrics.self_check_differences.clone());
        for (verb, outcomes) in OUTCOMES {
            for outcome in outcomes {
                let call = CallLabels { verb, outcome };
                drop(metrics.calls.get_or_create(&call));
                drop(metrics.seconds.get_or_create(&call));
            }
        }
        for reason in Reason::ALL {
            let reason = reason.name();
            drop(metrics.refusals.get_or_create(&RefusalLabels { reason }));
        }
        metrics
    }

    /// Counts one call.
    pub fn call(&self, verb: &'static str, outcome: &'static str, took: Duration) {
        let call = CallLabels { verb, outcome };
        self.calls.get_or_create(&call).inc();
        self.seconds
            .get_or_create(&call)
            .observe(took.as_secs_f64());
    }

    /// Counts the reasons of one refused call.
    pub fn refused(&self, refusal: &Refusal) {
        for (reason, _) in refusal.counts() {
            let reason = reason.name();
            self.refusals.get_or_create(&RefusalLabels { reason }).inc();
        }
    }
}
