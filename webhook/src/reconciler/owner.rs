//! The owners of the Secret and of the webhook configuration: the chart's roles, so that the
//! garbage collector removes both with the chart. Where the roles are absent both have no owner.

use k8s_openapi::api::rbac::v1::{ClusterRole, Role};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

use super::call::{ReconcileError, call};

/// The name of both roles.
const NAME: &str = "aliquot-webhook";

/// Looks up the owners.
pub(super) struct Owners {
    of_secret: Api<Role>,
    of_configuration: Api<ClusterRole>,
}

impl Owners {
    /// Owners in this namespace.
    pub(super) fn new(client: &Client, namespace: &str) -> Self {
        Self {
            of_secret: Api::namespaced(client.clone(), namespace),
            of_configuration: Api::all(client.clone()),
        }
    }

    /// The owner of the Secret; `None`: it has none.
    pub(super) async fn of_secret(&self) -> Result<Option<OwnerReference>, ReconcileError> {
        owner(&self.of_secret).await
    }

    /// The owner of the configuration.
    pub(super) async fn of_configuration(&self) -> Result<Option<OwnerReference>, ReconcileError> {
        owner(&self.of_configuration).await
    }
}

/// The owner by name; none where reading it is forbidden, as in an installation without the chart's
/// roles.
async fn owner<K>(api: &Api<K>) -> Result<Option<OwnerReference>, ReconcileError>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    match call("get", "the owner", api.get_opt(NAME)).await {
        Ok(owner) => Ok(owner
            .filter(is_alive)
            .and_then(|owner| owner.owner_ref(&()))),
        Err(ReconcileError::Call {
            source: kube::Error::Api(status),
            ..
        }) if status.code == 403 => Ok(None),
        Err(error) => Err(error),
    }
}

/// An owner that is being deleted would take our objects with it at once.
fn is_alive(owner: &impl Resource) -> bool {
    owner.meta().deletion_timestamp.is_none()
}
