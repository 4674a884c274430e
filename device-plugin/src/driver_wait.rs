//! Waits for the driver at the agent's start. On a node that boots, the driver's module may not be
//! loaded yet, or a driver container may not have mounted its files. Until the driver answers,
//! nothing is registered with the kubelet.

use std::time::Duration;

use aliquot_nvml::NvmlError;
use aliquot_serve::Readiness;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use thiserror::Error;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use crate::admin::{self, AdminError, DRIVER};
use crate::metrics::Metrics;
use crate::publish::conditions::{self, DRIVER_MISSING};
use crate::settings::Settings;

const RETRY: Duration = Duration::from_secs(2);
const DEADLINE: Duration = Duration::from_secs(5);

#[derive(Debug, Error)]
pub enum DriverWaitError {
    #[error(transparent)]
    Admin(#[from] AdminError),
    #[error("a blocking task panicked: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// Opens the driver. While that fails, reports why and tries again, until `stop`, which returns
/// `None`.
pub(crate) async fn open<T, F>(
    settings: &Settings,
    client: &Client,
    readiness: &Readiness,
    open: F,
    stop: &CancellationToken,
) -> Result<Option<T>, DriverWaitError>
where
    T: Send + 'static,
    F: Fn() -> Result<T, NvmlError> + Clone + Send + 'static,
{
    let mut error = match spawn_blocking(open.clone()).await? {
        Ok(driver) => return Ok(Some(driver)),
        Err(error) => error.to_string(),
    };
    let (metrics, registry) = Metrics::registered();
    metrics.driver_missing.set(1);
    let answered = stop.child_token();
    let serving = admin::serve(settings, client, readiness, registry, answered.clone()).await?;
    let serving = tokio::spawn(serving);
    let mut written = String::new();
    let driver = loop {
        readiness.fail(DRIVER, error.clone());
        tracing::warn!(error, "waiting for the driver");
        if written != error && write_condition(client, &settings.node_name, &error).await {
            written.clone_from(&error);
        }
        tokio::select! {
            () = stop.cancelled() => break None,
            () = tokio::time::sleep(RETRY) => {}
        }
        match spawn_blocking(open.clone()).await? {
            Ok(driver) => break Some(driver),
            Err(found) => error = found.to_string(),
        }
    };
    // The agent serves at the same address from now on.
    answered.cancel();
    serving.await?;
    if driver.is_some() {
        tracing::info!("the driver answers");
        readiness.pass(DRIVER);
    }
    Ok(driver)
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
    use clap::Parser as _;
    use parking_lot::Mutex;
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::api_server;

    #[tokio::test(start_paused = true)]
    async fn waits_for_the_driver_and_reports_what_is_missing() {
        let driver = tempfile::tempdir().expect("tempdir");
        let path = driver.path().to_owned();
        let line = ["agent", "--node-name", "n1", "--listen", "127.0.0.1:0"];
        let settings = Settings::try_parse_from(line).expect("good flags");
        let (readiness, stop) = (Readiness::new([]), CancellationToken::new());
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
        let mut waiting = Box::pin(open(&settings, &client, &readiness, library(), &stop));
        let wait = tokio::time::timeout(Duration::from_secs(10), &mut waiting);
        assert!(wait.await.is_err(), "returned without a driver");
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

        // A stop ends the wait.
        std::fs::remove_dir_all(&folder).expect("removed");
        stop.cancel();
        let stopped = open(&settings, &client, &readiness, library(), &stop).await;
        assert!(stopped.expect("no failure").is_none());
    }
}
