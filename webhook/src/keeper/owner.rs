//! With which objects of the chart ours go: the garbage collector takes away what these own, so
//! that nothing of ours outlives the chart.
//!
//! Fed by: the roles of this webhook, by name. Must not: keep anything from being written where
//! they are not there.

use k8s_openapi::api::rbac::v1::{ClusterRole, Role};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

use super::call::{KeepError, call};

/// The name of both.
const NAME: &str = "aliquot-webhook";

/// Looks the owners up.
pub(super) struct Owners {
    of_secret: Api<Role>,
    of_configuration: Api<ClusterRole>,
}

impl Owners {
    /// Those in this namespace.
    pub(super) fn new(client: &Client, namespace: &str) -> Self {
        Self {
            of_secret: Api::namespaced(client.clone(), namespace),
            of_configuration: Api::all(client.clone()),
        }
    }

    /// The owner of the Secret; `None`: it stands alone.
    pub(super) async fn of_secret(&self) -> Result<Option<OwnerReference>, KeepError> {
        found(&self.of_secret).await
    }

    /// The owner of the configuration.
    pub(super) async fn of_configuration(&self) -> Result<Option<OwnerReference>, KeepError> {
        found(&self.of_configuration).await
    }
}

/// An owner that may not be read is none: an installation without the chart's rights works, too.
async fn found<K>(api: &Api<K>) -> Result<Option<OwnerReference>, KeepError>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    match call("get", "the owner", api.get_opt(NAME)).await {
        Ok(owner) => Ok(owner.filter(is_kept).and_then(|owner| owner.owner_ref(&()))),
        Err(KeepError::Call {
            source: kube::Error::Api(status),
            ..
        }) if status.code == 403 => Ok(None),
        Err(error) => Err(error),
    }
}

/// One that is being removed would take ours with it at once.
fn is_kept(owner: &impl Resource) -> bool {
    owner.meta().deletion_timestamp.is_none()
}
