//! The scheduler's metrics: all are declared in this table, from which
//! `docs/reference/metrics.md` is made, and the counters among them.
//!
//! Fed by: the verbs and the tasks; [`crate::gauges`] reads the others from the
//! books at scrape time.
//! Must not: carry names of pods (bounded cardinality).

use std::fmt::Write as _;
use std::time::Duration;

use aliquot_core::{Reason, Refusal};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry, Unit};

/// What every name begins with.
pub const PREFIX: &str = "aliquot_scheduler";

/// What a metric is.
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
pub struct Declared {
    /// Without prefix, unit and `_total`.
    name: &'static str,
    kind: Kind,
    /// Empty for a plain number.
    unit: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
}

macro_rules! declared {
    ($($constant:ident = $kind:ident $name:literal $unit:literal [$($label:literal),*] $help:literal;)*) => {
        $(
            #[doc = $help]
            pub const $constant: Declared = Declared {
                name: $name,
                kind: Kind::$kind,
                unit: $unit,
                labels: &[$($label),*],
                help: $help,
            };
        )*
        /// Every metric, in the order of the reference.
        pub const ALL: &[Declared] = &[$($constant),*];
    };
}

declared! {
    CALLS = Counter "calls" "" ["verb", "outcome"]
        "Extender calls; `bind` counts bindings by outcome, `conflict` among them is a node that was full by then";
    CALL = Histogram "call" "seconds" ["verb", "outcome"]
        "Time of extender calls";
    REFUSALS = Counter "refusals" "" ["reason"]
        "Refused filter calls in which a card or node was refused for this reason";
    NUDGES = Counter "nudges" "" []
        "Refused pods woken because they fit again";
    PREEMPTIONS = Counter "preemptions" "" []
        "Preemptions whose first victim was evicted";
    SELF_CHECK_DIFFERENCES = Counter "self_check_differences" "" []
        "Entries of the books that differed from recomputed ones; anything but 0 is a bug";
    EVENTS_DROPPED = Counter "events_dropped" "" []
        "Events that found the queue full";
    LEADS = Gauge "leads" "" []
        "1 while this replica may bind";
    WATCH_AGE = Gauge "watch_age" "seconds" ["kind"]
        "Time since the watch last brought anything; absent before the first list";
    NODES = Gauge "nodes" "" []
        "Nodes with an inventory in the books";
    GPUS = Gauge "gpus" "" []
        "Cards in the books";
    BOOKINGS = Gauge "bookings" "" []
        "Bound pods in the books";
    RESERVATIONS = Gauge "reservations" "" []
        "Pods booked whose binding the watch has not shown";
    WAITING_PODS = Gauge "waiting_pods" "" []
        "Pods that ask for a share and are not bound";
    REFUSED_PODS = Gauge "refused_pods" "" []
        "Waiting pods that nothing fits";
    SOFT_CLAIMS = Gauge "soft_claims" "" []
        "Pods that were told a node a moment ago and are not booked yet";
    QUOTA_USED = Gauge "quota_used" "" ["namespace", "quota", "resource"]
        "MiB or percent of compute that the namespace's pods hold, for each of our limits; absent while an allocation there cannot be read";
    QUOTA_LIMIT = Gauge "quota_limit" "" ["namespace", "quota", "resource"]
        "What the limit allows; 0 for one that cannot be read";
    GPU_MEMORY_BOOKED = Gauge "gpu_memory_booked" "bytes" ["node", "gpu", "index"]
        "Memory promised of a card, lingering shares included";
    GPU_MEMORY_FREE = Gauge "gpu_memory_free" "bytes" ["node", "gpu", "index"]
        "Memory that can still be promised; 0 for a card that takes no new share";
    GPU_MEMORY_LINGERING = Gauge "gpu_memory_lingering" "bytes" ["node", "gpu", "index"]
        "Memory of shares whose processes outlive their pods; only for cards that have some";
    GPU_CORES_BOOKED = Gauge "gpu_cores_booked" "ratio" ["node", "gpu", "index"]
        "Compute promised of a card; 1 is all of it";
    GPU_CORES_FREE = Gauge "gpu_cores_free" "ratio" ["node", "gpu", "index"]
        "Compute that can still be promised; 0 for a card that takes no new share";
    GPU_CORES_LINGERING = Gauge "gpu_cores_lingering" "ratio" ["node", "gpu", "index"]
        "Compute of shares whose processes outlive their pods; only for cards that have some";
    GPU_SEATS_BOOKED = Gauge "gpu_seats_booked" "" ["node", "gpu", "index"]
        "Shares of a card";
    GPU_SEATS_FREE = Gauge "gpu_seats_free" "" ["node", "gpu", "index"]
        "Shares that the card can still carry; 0 for one that takes no new share";
}

impl Declared {
    /// The family's name: all but what the samples of its kind end in.
    pub fn family(&self) -> String {
        let unit = if self.unit.is_empty() { "" } else { "_" };
        format!("{PREFIX}_{}{unit}{}", self.name, self.unit)
    }

    /// What it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Name, help and unit as the library takes them.
    pub(crate) fn parts(&self) -> (&'static str, &'static str, Option<Unit>) {
        let unit = match self.unit {
            "" => None,
            "seconds" => Some(Unit::Seconds),
            "bytes" => Some(Unit::Bytes),
            other => Some(Unit::Other(other.to_owned())),
        };
        (self.name, self.help, unit)
    }

    /// The lines that come before the samples.
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
         Made from `scheduler/src/metrics.rs` by `make reference`; a test compares.\n\n\
         `GET /metrics` answers all of them as OpenMetrics text.\n\
         Those with the label `gpu` are written while they are read, so that 40,000 cards need no memory for them.\n\n\
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
pub struct Call {
    /// The verb; `prioritize_cpu_only` is that of the second, opt-in entry.
    pub verb: &'static str,
    /// ok, refused, conflict, gone or error.
    pub outcome: &'static str,
}

/// What is watched for the books, by the API's names.
pub const WATCHED: [&str; 3] = ["pods", "nodes", "resourcequotas"];

/// Every pair that occurs, so that each is there from the start.
const OUTCOMES: [(&str, &[&str]); 5] = [
    ("filter", &["ok", "refused", "error"]),
    ("prioritize", &["ok", "error"]),
    ("prioritize_cpu_only", &["ok", "error"]),
    ("preempt", &["ok", "error"]),
    ("bind", &["ok", "conflict", "gone", "error"]),
];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Why {
    reason: &'static str,
}

/// Counters and histograms; clones share their values.
#[derive(Clone, Debug)]
pub struct Metrics {
    calls: Family<Call, Counter>,
    seconds: Family<Call, Histogram>,
    refusals: Family<Why, Counter>,
    /// Pods woken because they fit again.
    pub nudges: Counter,
    /// Preemptions whose first victim was evicted.
    pub preemptions: Counter,
    /// Entries of the books that the self-check found to differ.
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
            nudges: Counter::default(),
            preemptions: Counter::default(),
            self_check_differences: Counter::default(),
        };
        CALLS.register(registry, metrics.calls.clone());
        CALL.register(registry, metrics.seconds.clone());
        REFUSALS.register(registry, metrics.refusals.clone());
        NUDGES.register(registry, metrics.nudges.clone());
        PREEMPTIONS.register(registry, metrics.preemptions.clone());
        SELF_CHECK_DIFFERENCES.register(registry, metrics.self_check_differences.clone());
        for (verb, outcomes) in OUTCOMES {
            for outcome in outcomes {
                let call = Call { verb, outcome };
                drop(metrics.calls.get_or_create(&call));
                drop(metrics.seconds.get_or_create(&call));
            }
        }
        for reason in Reason::ALL {
            let reason = reason.name();
            drop(metrics.refusals.get_or_create(&Why { reason }));
        }
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

    /// Counts the reasons of one refused call.
    pub fn refused(&self, refusal: &Refusal) {
        for (reason, _) in refusal.counts() {
            let reason = reason.name();
            self.refusals.get_or_create(&Why { reason }).inc();
        }
    }
}
