//! Calls of the API server about one pod, each with a deadline. Only a Binding is posted elsewhere
//! ([`crate::bind`]).

use std::collections::BTreeMap;
use std::time::Duration;

use aliquot_core::{Excerpt, NodeName};
use aliquot_k8s::event::PodRef;
use aliquot_k8s::view::PodView;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::Request;
use kube::{Api, Client, Resource as _};
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use thiserror::Error;
use tokio::time::error::Elapsed;
use tokio::time::timeout;

/// How often a nomination is withdrawn at most.
const WITHDRAWALS: u32 = 3;

/// Deadline of one call.
pub const DEADLINE: Duration = Duration::from_secs(3);

/// The answer of an API server that has too much to do, before it looks at what is asked.
const THROTTLED: &str = "Too many requests, please try again later.";

#[derive(Clone)]
pub struct PodClient {
    client: Client,
}

/// Why the API server did not do what was asked, or why its answer is unknown.
#[derive(Debug, Error)]
pub enum CallError {
    #[error(transparent)]
    Failed(#[from] kube::Error),
    #[error(transparent)]
    Elapsed(#[from] Elapsed),
}

/// The outcome of a write on a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// The pod has it.
    Written,
    /// It has not, and will not get it by this or an earlier call.
    NotWritten(String),
    /// It may get it yet.
    Unknown(String),
}

/// Whether what was asked may have been done, or may yet be, after an answer with this code. An error in
/// JSON of a proxy before the API server has none.
pub(crate) fn leaves_unknown(code: u16) -> bool {
    matches!(code, 0 | 408 | 429 | 500..)
}

/// What the API server says; it repeats the texts of others, such as a webhook's.
pub(crate) fn shortened(message: &str) -> String {
    Excerpt::from(message).to_string()
}

impl From<Result<(), CallError>> for WriteOutcome {
    fn from(answer: Result<(), CallError>) -> Self {
        match answer {
            Ok(()) => Self::Written,
            Err(CallError::Failed(kube::Error::Api(status))) if !leaves_unknown(status.code) => {
                Self::NotWritten(shortened(&status.message))
            }
            Err(CallError::Failed(kube::Error::Api(status))) => {
                Self::Unknown(shortened(&status.message))
            }
            Err(error) => Self::Unknown(error.to_string()),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EvictionOutcome {
    /// The pod is being terminated (or would be, in a dry run).
    Accepted,
    /// There is no such pod of this uid.
    Gone,
    /// A disruption budget forbids it now.
    Protected(String),
    /// Refused, or the outcome is unknown.
    Failed(String),
}

impl PodClient {
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    pub(crate) fn api(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// The pods of a namespace, as views.
    pub(crate) fn views(&self, namespace: &str) -> Api<PodView> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// The pod as it is now; `None` where there is none with this uid.
    pub async fn get(&self, pod: &PodRef) -> Result<Option<PodView>, CallError> {
        let found = self.find(&pod.namespace, &pod.name).await?;
        Ok(found.filter(|found| found.uid().as_str() == pod.uid))
    }

    /// The pod of this name, whatever its uid.
    pub async fn find(&self, namespace: &str, name: &str) -> Result<Option<PodView>, CallError> {
        Ok(timeout(DEADLINE, self.views(namespace).get_opt(name)).await??)
    }

    /// Writes the annotation, or removes it without a text. The uid is a precondition.
    pub async fn annotate(
        &self,
        pod: &PodRef,
        annotation: &str,
        text: Option<&str>,
    ) -> Result<(), CallError> {
        let metadata = json!({"uid": pod.uid, "annotations": {annotation: text}});
        self.patch_metadata(pod, metadata).await
    }

    async fn patch_metadata(&self, pod: &PodRef, metadata: Value) -> Result<(), CallError> {
        let params = PatchParams::default();
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        let request = patches(pod).patch_metadata(&pod.name, &params, &patch);
        let request = request.map_err(kube::Error::BuildRequest)?;
        timeout(DEADLINE, self.client.request::<IgnoredAny>(request)).await??;
        Ok(())
    }

    /// Writes the annotations, with uid and resource version as preconditions. While the outcome is
    /// unknown, it is called again with the same, as `repeated`.
    pub async fn annotate_version(
        &self,
        pod: &PodRef,
        version: &str,
        annotations: &BTreeMap<&str, String>,
        repeated: bool,
    ) -> WriteOutcome {
        let metadata =
            json!({"uid": pod.uid, "resourceVersion": version, "annotations": annotations});
        let why = match WriteOutcome::from(self.patch_metadata(pod, metadata).await) {
            WriteOutcome::Unknown(why) => why,
            WriteOutcome::NotWritten(why) if repeated => why,
            known => return known,
        };
        // An earlier call may have written them, or may do so until the pod has another version.
        match self.get(pod).await {
            Ok(None) => WriteOutcome::NotWritten("the pod is gone".to_owned()),
            Ok(Some(found)) => {
                if has(&found, annotations) {
                    WriteOutcome::Written
                } else if found.resource_version() == Some(version) {
                    WriteOutcome::Unknown(why)
                } else {
                    WriteOutcome::NotWritten(why)
                }
            }
            Err(error) => WriteOutcome::Unknown(error.to_string()),
        }
    }

    /// Whether the pod is there and has these annotations.
    pub async fn has_annotations(
        &self,
        pod: &PodRef,
        annotations: &BTreeMap<&str, String>,
    ) -> Result<bool, CallError> {
        let found = self.get(pod).await?;
        Ok(found.is_some_and(|found| has(&found, annotations)))
    }

    /// Nominates a node for a pending pod and withdraws the nomination at once
    /// (`status.nominatedNodeName`). The uid is a precondition.
    pub async fn nominate(&self, pod: &PodRef, node: &NodeName) -> Result<(), CallError> {
        let params = PatchParams::default();
        let set = async |node: Option<&str>| {
            let status = json!({"nominatedNodeName": node});
            let patch = Patch::Merge(json!({"metadata": {"uid": pod.uid}, "status": status}));
            let request = patches(pod).patch_subresource("status", &pod.name, &params, &patch);
            let request = request.map_err(kube::Error::BuildRequest)?;
            timeout(DEADLINE, self.client.request::<IgnoredAny>(request)).await??;
            Ok::<(), CallError>(())
        };
        let nominated = set(Some(node.as_str())).await;
        if let Err(CallError::Failed(kube::Error::Api(status))) = &nominated
            && !leaves_unknown(status.code)
        {
            return nominated;
        }
        // While it is nominated, kube-scheduler keeps the node's room for it.
        for _ in 1..WITHDRAWALS {
            if set(None).await.is_ok() {
                return nominated;
            }
        }
        nominated.and(set(None).await)
    }

    /// Calls the Eviction API once; with `dry_run`, asks whether the eviction would be allowed. The
    /// body is our own: kube's sends the uid precondition under a name that no API server reads.
    pub async fn evict(&self, pod: &PodRef, dry_run: bool) -> EvictionOutcome {
        let api = self.api(&pod.namespace);
        let mut options = json!({"preconditions": {"uid": pod.uid}});
        if dry_run {
            options["dryRun"] = json!(["All"]);
        }
        let eviction = json!({
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": options,
        });
        let params = PostParams {
            dry_run,
            ..PostParams::default()
        };
        let call =
            api.create_subresource::<_, IgnoredAny>("eviction", &pod.name, &params, &eviction);
        match timeout(DEADLINE, call).await {
            Ok(Ok(_)) => EvictionOutcome::Accepted,
            Ok(Err(kube::Error::Api(status))) => match status.code {
                404 | 409 => EvictionOutcome::Gone,
                429 if status.message != THROTTLED => {
                    EvictionOutcome::Protected(shortened(&status.message))
                }
                _ => EvictionOutcome::Failed(shortened(&status.message)),
            },
            Ok(Err(error)) => EvictionOutcome::Failed(error.to_string()),
            Err(elapsed) => EvictionOutcome::Failed(elapsed.to_string()),
        }
    }
}

/// For patches whose answers are not read: whoever may patch the pod may write managed fields that
/// cannot be read, and what was done would count as failed.
fn patches(pod: &PodRef) -> Request {
    Request::new(Pod::url_path(&(), Some(&pod.namespace)))
}

fn has(pod: &PodView, annotations: &BTreeMap<&str, String>) -> bool {
    let mut all = annotations.iter();
    all.all(|(key, text)| pod.annotation(key) == Some(text.as_str()))
}

#[cfg(test)]
#[path = "pod_client_tests.rs"]
pub(crate) mod tests;
