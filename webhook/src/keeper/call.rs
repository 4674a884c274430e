//! Calls to the API server: each under a deadline, each failure named.
//!
//! Fed by: the keeper. Must not: try again; the next pass does.

use std::time::Duration;

use thiserror::Error;

use super::mounted::MountedError;
use crate::certificates::CertificateError;
use aliquot_serve::tls;

/// Longest wait for one answer of the API server.
const DEADLINE: Duration = Duration::from_secs(5);
/// Tries at one object while others write it too.
pub(super) const TRIES: u32 = 5;

/// The step of a pass that failed. The next pass begins anew.
#[derive(Debug, Error)]
pub enum KeepError {
    /// A call to the API server failed.
    #[error("cannot {verb} {object}")]
    Call {
        /// What was tried.
        verb: &'static str,
        /// On what.
        object: &'static str,
        /// The answer.
        source: kube::Error,
    },
    /// A call to the API server took too long.
    #[error("cannot {verb} {object}: no answer within {DEADLINE:?}")]
    Silence {
        /// What was tried.
        verb: &'static str,
        /// On what.
        object: &'static str,
    },
    /// Others wrote the object each time.
    #[error("{object} changed under each of {TRIES} tries")]
    Contended {
        /// Which.
        object: &'static str,
    },
    /// A certificate could not be made.
    #[error("cannot renew certificates")]
    Renew(#[source] CertificateError),
    /// Certificates of somebody else's making cannot be used.
    #[error("cannot read the mounted certificates")]
    Mounted(#[source] MountedError),
    /// The listener did not take the leaf.
    #[error("cannot serve the new certificate")]
    Serve(#[source] tls::CertificateError),
    /// The object cannot be written as JSON.
    #[error("cannot encode the webhook configuration")]
    Encode(#[source] serde_json::Error),
    /// The API server keeps something else than what was sent.
    #[error("the webhook configuration does not stay as it was written")]
    Altered,
}

/// A call under the deadline, its failure named by verb and object.
pub(super) async fn call<T>(
    verb: &'static str,
    object: &'static str,
    answer: impl Future<Output = kube::Result<T>>,
) -> Result<T, KeepError> {
    match tokio::time::timeout(DEADLINE, answer).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(source)) => Err(KeepError::Call {
            verb,
            object,
            source,
        }),
        Err(_) => Err(KeepError::Silence { verb, object }),
    }
}

/// `None` when the object is there already, has changed, or has just gone:
/// somebody else was first, so read it again.
pub(super) fn unless_conflict<T>(written: Result<T, KeepError>) -> Result<Option<T>, KeepError> {
    let Err(KeepError::Call {
        verb,
        source: kube::Error::Api(status),
        ..
    }) = &written
    else {
        return written.map(Some);
    };
    match (*verb, status.code) {
        (_, 409) | ("replace", 404) => Ok(None),
        _ => written.map(Some),
    }
}
