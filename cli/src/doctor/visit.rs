//! The life of a probe pod: created, waited for, read, deleted.
//!
//! Fed by: [`super::probe`], which says what it is. Must not: leave it behind, or wait for ever.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, LogParams, PostParams};
use serde_json::Value;
use tokio::time::{Instant, interval};

use super::finding::Fact;
use super::gather::fact;
use super::look::Look;
use super::probe::waits;

/// Longest wait for a probe: an image may have to be fetched.
const PATIENCE: Duration = Duration::from_mins(1);
/// Between two looks at it.
const EVERY: Duration = Duration::from_millis(300);

/// What a probe came back with.
pub(super) struct Seen {
    /// What its process saw.
    pub(super) look: Look,
    /// The runtime class that its pod was stored with.
    pub(super) class: Option<String>,
}

/// What a process in this pod sees.
pub(super) async fn look(pods: &Api<Pod>, pod: Value) -> Fact<Seen> {
    let pod: Pod = fact(serde_json::from_value(pod))?;
    let made = pods.create(&PostParams::default(), &pod).await;
    let made = made.map_err(|error| format!("no probe pod could be created: {error}"))?;
    let name = made.metadata.name.unwrap_or_default();
    let class = made.spec.and_then(|spec| spec.runtime_class_name);
    let seen = ended(pods, &name).await.map(|look| Seen { look, class });
    let now = DeleteParams::default().grace_period(0);
    match pods.delete(&name, &now).await {
        Ok(_) => seen,
        Err(error) => Err(format!(
            "the probe pod {name} could not be deleted: {error}"
        )),
    }
}

/// Waits for its end, and reads what it printed.
async fn ended(pods: &Api<Pod>, name: &str) -> Fact<Look> {
    let until = Instant::now() + PATIENCE;
    let mut ticks = interval(EVERY);
    loop {
        ticks.tick().await;
        let pod = fact(pods.get(name).await)?;
        let phase = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        match phase {
            Some("Succeeded") => break,
            Some("Failed") => return Err(waits(&pod)),
            _ if Instant::now() > until => {
                let seconds = PATIENCE.as_secs();
                return Err(format!("after {seconds} s {}", waits(&pod)));
            }
            _ => {}
        }
    }
    let text = fact(pods.logs(name, &LogParams::default()).await)?;
    let read = |error| format!("the probe printed something else than what it saw: {error}");
    serde_json::from_str(text.trim()).map_err(read)
}
