//! The agent's port of health and metrics: its readiness conditions, and who is served.

use std::sync::Arc;

use aliquot_core::access::Access;
use aliquot_k8s::access;
use aliquot_serve::access_control::{self, AccessControl};
use aliquot_serve::tls::SelfSignedError;
use aliquot_serve::{Readiness, admin, http};
use kube::Client;
use prometheus_client::registry::Registry;
use thiserror::Error;
use tokio_util::sync::CancellationToken;

use crate::settings::Settings;

/// Readiness: every resource is registered with the kubelet.
pub const REGISTERED: &str = "registered";
/// Readiness: the node's inventory annotation is up to date.
pub const INVENTORY: &str = "inventory";
/// Readiness: the driver answers.
pub const DRIVER: &str = "driver";
/// Readiness: the node's pods are known and their watch is current.
pub const PODS: &str = "pods";

/// Readiness condition that fails once the agent has cleaned up the node.
const CLEANUP: &str = "cleanup";

#[derive(Debug, Error)]
pub enum AdminError {
    #[error(transparent)]
    Listen(#[from] http::ListenError),
    #[error(transparent)]
    AccessControl(#[from] SelfSignedError),
}

/// Reports to a readiness condition: `None` means that it holds.
pub(crate) fn condition_reporter(
    readiness: &Readiness,
    condition: &'static str,
) -> impl Fn(Option<String>) + Send + Sync + use<> {
    let readiness = readiness.clone();
    move |reason| match reason {
        None => readiness.pass(condition),
        Some(reason) => readiness.fail(condition, reason),
    }
}

/// Opens the port of health and metrics; what is returned serves it until `stop` is cancelled.
pub(crate) async fn serve(
    settings: &Settings,
    client: &Client,
    readiness: &Readiness,
    registry: Registry,
    stop: CancellationToken,
) -> Result<impl Future<Output = ()> + Send + use<>, AdminError> {
    let listener = http::bind(settings.listen).await?;
    let router = admin::router(readiness.clone(), Arc::new(registry));
    let reviewer = access::reviewer(client.clone());
    let control = settings
        .authenticate
        .then(|| AccessControl::new(reviewer, []));
    let control = control.transpose()?;
    Ok(access_control::serve(listener, router, control, stop))
}

/// Serves nothing but that the agent has cleaned up the node: keeps the process alive without work,
/// so that it is not restarted there.
pub(crate) async fn serve_after_cleanup(
    settings: &Settings,
    stop: CancellationToken,
) -> Result<(), AdminError> {
    let readiness = Readiness::new([CLEANUP]);
    readiness.fail(
        CLEANUP,
        "the agent has cleaned up this node; Aliquot is being removed",
    );
    let router = admin::router(readiness, Arc::new(Registry::default()));
    let listener = http::bind(settings.listen).await?;
    // The kubelet's probes are as before; nobody else is served.
    let nobody =
        |_, _| -> access_control::Reviewed { Box::pin(async { Ok(Access::Unauthenticated) }) };
    let control = settings
        .authenticate
        .then(|| AccessControl::new(nobody, []));
    access_control::serve(listener, router, control.transpose()?, stop).await;
    Ok(())
}
