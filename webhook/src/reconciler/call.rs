//! Calls to the API server: each with a deadline and an error that names verb and object. A
//! failed call is not retried; the next reconciliation repeats everything.

use std::time::Duration;

use thiserror::Error;

use super::SECRET;
use super::mounted::MountedError;
use crate::certificates::CertificateError;
use crate::configuration::NAME;
use aliquot_serve::tls;

/// Deadline of one call.
const DEADLINE: Duration = Duration::from_secs(5);
/// Attempts at one object while others write it too.
pub(super) const ATTEMPTS: u32 = 5;

/// The step of a reconciliation that failed. The next one starts from the beginning.
#[derive(Debug, Error)]
pub enum ReconcileError {
    /// A call to the API server failed.
    #[error("cannot {verb} {object}")]
    Call {
        /// The verb.
        verb: &'static str,
        /// The object.
        object: &'static str,
        /// The response.
        source: kube::Error,
    },
    /// A call to the API server took too long.
    #[error("cannot {verb} {object}: no response within {DEADLINE:?}")]
    Timeout {
        /// The verb.
        verb: &'static str,
        /// The object.
        object: &'static str,
    },
    /// Others wrote the object during each attempt.
    #[error("cannot write {object}: it changed during each of {ATTEMPTS} attempts")]
    Conflict {
        /// The object.
        object: &'static str,
    },
    /// A certificate could not be created.
    #[error("cannot renew certificates")]
    Renew(#[source] CertificateError),
    /// The mounted certificates cannot be used.
    #[error("cannot read the mounted certificates")]
    Mounted(#[source] MountedError),
    /// The listener did not accept the serving certificate.
    #[error("cannot serve the new certificate")]
    Serve(#[source] tls::CertificateError),
    /// The object cannot be written as JSON.
    #[error("cannot encode the webhook configuration")]
    Encode(#[source] serde_json::Error),
    /// There is no Secret.
    #[error("Secret {SECRET} does not exist; expected: as the chart creates it (helm upgrade)")]
    NoSecret,
    /// There is no configuration.
    #[error(
        "MutatingWebhookConfiguration {NAME} does not exist; expected: as the chart creates it (helm upgrade)"
    )]
    NoConfiguration,
    /// The configuration lacks one of our webhooks.
    #[error(
        "MutatingWebhookConfiguration {NAME} has no webhook {webhook}; expected: as the chart creates it (helm upgrade)"
    )]
    NoWebhook {
        /// Its name.
        webhook: &'static str,
    },
}

/// A call with the deadline; its error names verb and object.
pub(super) async fn call<T>(
    verb: &'static str,
    object: &'static str,
    response: impl Future<Output = kube::Result<T>>,
) -> Result<T, ReconcileError> {
    match tokio::time::timeout(DEADLINE, response).await {
        Ok(Ok(response)) => Ok(response),
        Ok(Err(source)) => Err(ReconcileError::Call {
            verb,
            object,
            source,
        }),
        Err(_) => Err(ReconcileError::Timeout { verb, object }),
    }
}

/// `None` when another client was first: the object has changed or was deleted. Read it again.
pub(super) fn unless_conflict<T>(
    written: Result<T, ReconcileError>,
) -> Result<Option<T>, ReconcileError> {
    let Err(ReconcileError::Call {
        verb,
        source: kube::Error::Api(status),
        ..
    }) = &written
    else {
        return written.map(Some);
    };
    match (*verb, status.code) {
        (_, 409) | ("patch", 404) => Ok(None),
        _ => written.map(Some),
    }
}
