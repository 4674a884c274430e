//! Latencies as the webhook and the API server count them in their histograms: no more exact than a
//! bucket's edge.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use aliquot_cluster::Cluster;
use aliquot_e2e::http;
use anyhow::{Context as _, Result};
use kube::api::GetParams;
use kube::core::Request;

const REVIEWS: &str = "aliquot_webhook_review_duration_seconds";
const CALLS: &str = "apiserver_admission_webhook_admission_duration_seconds";
const WEBHOOK: &str = "name=\"pods.aliquot.dev\"";

/// Counts up to each edge, in the edge's nanoseconds; all of them; seconds together.
#[derive(Clone, Debug, Default)]
struct Histogram {
    buckets: BTreeMap<u64, f64>,
    count: f64,
    sum: f64,
}

impl Histogram {
    /// The sum of all series of this name whose labels contain `label`.
    fn read(page: &str, name: &str, label: &str) -> Result<Self> {
        let mut found = Self::default();
        for line in page.lines().filter(|line| line.contains(label)) {
            let Some(rest) = line.strip_prefix(name) else {
                continue;
            };
            let value = rest.rsplit(' ').next().context("a value")?;
            let value: f64 = value.parse().with_context(|| line.to_owned())?;
            if rest.starts_with("_sum") {
                found.sum += value;
            } else if rest.starts_with("_count") {
                found.count += value;
            } else if rest.starts_with("_bucket") {
                let edge = rest
                    .split("le=\"")
                    .nth(1)
                    .and_then(|le| le.split('"').next());
                let edge = edge.context("an edge")?;
                if edge != "+Inf" {
                    *found
                        .buckets
                        .entry(nanoseconds(edge.parse()?)?)
                        .or_default() += value;
                }
            }
        }
        Ok(found)
    }

    fn add(&mut self, other: &Self, times: f64) {
        for (edge, count) in &other.buckets {
            *self.buckets.entry(*edge).or_default() += times * count;
        }
        self.count += times * other.count;
        self.sum += times * other.sum;
    }

    /// The part of all that was no longer than this.
    fn within(&self, seconds: f64) -> f64 {
        let edge = nanoseconds(seconds).unwrap_or(0);
        let below = self.buckets.range(..=edge).next_back();
        below.map_or(0.0, |(_, count)| count / self.count.max(1.0))
    }
}

fn nanoseconds(seconds: f64) -> Result<u64> {
    let time = std::time::Duration::try_from_secs_f64(seconds)?;
    Ok(u64::try_from(time.as_nanos())?)
}

fn whole(count: f64) -> usize {
    format!("{count:.0}").parse().unwrap_or(0)
}

/// What the webhook counted of its reviews.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reviews {
    took: Histogram,
    pub(crate) count: usize,
    /// Serving certificates that were issued.
    pub(crate) certificates: f64,
}

impl Reviews {
    pub(crate) async fn read(admin: SocketAddr) -> Result<Self> {
        let page = http::get(admin, "/metrics").await?;
        let took = Histogram::read(&page, REVIEWS, "")?;
        let certificates =
            http::metric(admin, "aliquot_webhook_certificates_issued_total", &[]).await?;
        let count = whole(took.count);
        Ok(Self {
            took,
            count,
            certificates,
        })
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.took.add(&other.took, 1.0);
        self.count += other.count;
        self.certificates += other.certificates;
    }

    /// Seconds that this part of all reviews did not pass: the edge of a bucket.
    pub(crate) fn at(&self, part: f64) -> f64 {
        let rank = part * self.took.count;
        let edge = self.took.buckets.iter().find(|(_, count)| **count >= rank);
        edge.map_or(f64::INFINITY, |(edge, _)| {
            std::time::Duration::from_nanos(*edge).as_secs_f64()
        })
    }
}

/// What the API server counted of its calls.
#[derive(Clone, Debug)]
pub(crate) struct ApiServer {
    took: Histogram,
    pub(crate) count: usize,
}

impl ApiServer {
    pub(crate) async fn read(cluster: &Cluster) -> Result<Self> {
        let request = Request::new("").get("metrics", &GetParams::default())?;
        let page = cluster.admin()?.request_text(request).await?;
        let took = Histogram::read(&page, CALLS, WEBHOOK)?;
        let count = whole(took.count);
        Ok(Self { took, count })
    }

    pub(crate) fn since(mut self, before: &Self) -> Self {
        self.took.add(&before.took, -1.0);
        self.count -= before.count;
        self
    }

    pub(crate) fn mean(&self) -> f64 {
        self.took.sum / self.took.count.max(1.0)
    }

    pub(crate) fn within(&self, seconds: f64) -> f64 {
        self.took.within(seconds)
    }
}
