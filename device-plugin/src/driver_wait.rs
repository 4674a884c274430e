//! Waits for the driver at the agent's start. On a node that boots, the driver's module may not be
//! loaded yet, or a driver container may not have mounted its files. Until the driver answers,
//! nothing is registered with the kubelet.

use std::time::Duration;

use aliquot_nvml::NvmlError;
use aliquot_serve::Readiness;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use tokio::task::{JoinError, spawn_blocking};
use tokio_util::sync::CancellationToken;

use crate::admin::DRIVER;
use crate::metrics::Metrics;
use crate::publish::conditions::{self, DRIVER_MISSING};

const RETRY: Duration = Duration::from_secs(2);
const DEADLINE: Duration = Duration::from_secs(5);

/// Opens the driver. While that fails, reports why and tries again, until `stop`, which returns
/// `None`.
pub(crate) async fn open<T, F>(
    node: &str,
    client: &Client,
    readiness: &Readiness,
    metrics: &Metrics,
    open: F,
    stop: &CancellationToken,
) -> Result<Option<T>, JoinError>
where
    T: Send + 'static,
    F: Fn() -> Result<T, NvmlError> + Clone + Send + 'static,
{
    let mut written = String::new();
    loop {
        let error = match spawn_blocking(open.clone()).await? {
            Ok(driver) => {
                metrics.driver_missing.set(0);
                readiness.pass(DRIVER);
                return Ok(Some(driver));
            }
            Err(error) => error.to_string(),
        };
        metrics.driver_missing.set(1);
        readiness.fail(DRIVER, error.clone());
        tracing::warn!(error, "waiting for the driver");
        if written != error && write_condition(client, node, &error).await {
            written = error;
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(None),
            () = tokio::time::sleep(RETRY) => {}
        }
    }
}

async fn write_condition(client: &Client, node: &str, error: &str) -> bool {
    let nodes: Api<Node> = Api::all(client.clone());
    let patch = Patch::Strategic(conditions::patch(
        DRIVER_MISSING,
        &conditions::driver(Some(error)),
    ));
    let params = PatchParams::default();
    let written = nodes.patch_status(node, &params, &patch);
    match tokio::time::timeout(DEADLINE, written).await {
        Ok(Ok(_)) => true,
        Ok(Err(error)) => {
            tracing::warn!(%error, "cannot write the Node object; retrying");
            false
        }
        Err(_) => {
            tracing::warn!("the API server did not answer within 5 s; retrying");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use aliquot_nvml::root;
    use parking_lot::Mutex;
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::api_server;

    #[tokio::test(start_paused = true)]
    async fn waits_for_the_driver_and_reports_what_is_missing() {
        let driver = tempfile::tempdir().expect("tempdir");
        let path = driver.path().to_owned();
        let (readiness, stop) = (Readiness::new([]), CancellationToken::new());
        let metrics = Metrics::default();
        let patches = Arc::<Mutex<Vec<Value>>>::default();
        let recorded = Arc::clone(&patches);
        let client = api_server(move |patch| {
            recorded.lock().push(patch);
            (200, json!({"metadata": {"name": "n1"}}))
        });
        let library = || {
            let path = path.clone();
            move || root::library(Path::new("libnvidia-ml.so.1"), Some(&path))
        };
        let open = || open("n1", &client, &readiness, &metrics, library(), &stop);
        let mut waiting = Box::pin(open());
        let wait = tokio::time::timeout(Duration::from_secs(10), &mut waiting);
        assert!(wait.await.is_err(), "returned without a driver");
        assert_eq!(metrics.driver_missing.get(), 1);
        let reasons = readiness.reasons();
        assert!(
            reasons[0].contains("driver: libnvidia-ml.so.1 not found in the driver root"),
            "{reasons:?}"
        );
        // Written once, although it tried several times.
        let written: Vec<Value> = patches.lock().clone();
        assert_eq!(written.len(), 1, "{written:?}");
        let condition = &written[0]["status"]["conditions"][0];
        assert_eq!(condition["type"], DRIVER_MISSING);
        assert_eq!(condition["status"], "True");

        let folder = driver.path().join("usr/lib64");
        std::fs::create_dir_all(&folder).expect("made");
        std::fs::write(folder.join("libnvidia-ml.so.1"), "").expect("written");
        let found = waiting.await.expect("no failure");
        assert!(found.is_some());
        assert!(readiness.reasons().is_empty());
        assert_eq!(metrics.driver_missing.get(), 0);

        // A stop ends the wait.
        std::fs::remove_dir_all(&folder).expect("removed");
        stop.cancel();
        assert!(open().await.expect("no failure").is_none());
    }
}
