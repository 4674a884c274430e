//! The webhook's metrics. None has a pod's or a user's name as label.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

/// The label of `aliquot_webhook_reviews`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OutcomeLabels {
    /// `unchanged`, `patched`, `denied`, or `malformed`: the body was not a review of a pod.
    pub outcome: &'static str,
}

/// Handles to the metrics. Clones share the counts.
#[derive(Clone, Debug)]
pub struct Metrics {
    pub reviews: Family<OutcomeLabels, Counter>,
    /// Seconds from body to response.
    pub duration: Histogram,
    /// When the serving certificate expires, in seconds since 1970.
    pub certificate_expiry: Gauge,
    pub certificates_issued: Counter,
    /// Writes of a CA bundle into the webhook configuration.
    pub configuration_writes: Counter,
}

impl Metrics {
    /// Registers all of them under `aliquot_webhook_`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            reviews: Family::default(),
            duration: Histogram::new(exponential_buckets(0.000_05, 2.0, 14)),
            certificate_expiry: Gauge::default(),
            certificates_issued: Counter::default(),
            configuration_writes: Counter::default(),
        };
        let registry = registry.sub_registry_with_prefix("aliquot_webhook");
        registry.register("reviews", "Reviews by outcome", metrics.reviews.clone());
        registry.register_with_unit(
            "review_duration",
            "Time from a review's body to its answer",
            Unit::Seconds,
            metrics.duration.clone(),
        );
        registry.register(
            "certificate_expiry_timestamp_seconds",
            "When the served certificate expires",
            metrics.certificate_expiry.clone(),
        );
        registry.register(
            "certificates_issued",
            "Serving certificates issued by this process",
            metrics.certificates_issued.clone(),
        );
        registry.register(
            "configuration_writes",
            "Writes of a CA bundle into the webhook configuration",
            metrics.configuration_writes.clone(),
        );
        metrics
    }
}
