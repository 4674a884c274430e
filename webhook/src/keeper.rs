//! Keeps what the webhook lives on: authorities in the Secret, our leaf in the
//! listener, the webhook configuration at the API server.
//!
//! Fed by: a timer, and watches of the two objects, so that a change by others
//! is repaired at once. One pass is [`Keeper::pass`]; it is repeated as a whole.
//! Must not: take the configuration away, or unready a replica because the API
//! server is away: what was applied still holds.

mod call;
mod mounted;
mod owner;

use std::collections::BTreeMap;
use std::path::PathBuf;

use aliquot_core::request::ResourceNames;
use aliquot_serve::Readiness;
use aliquot_serve::tls::Certificates;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use crate::certificates::{Authorities, Leaf, Lifetimes};
use crate::configuration::{self, NAME, Scope, Target, conforms, published, wanted};
use crate::metrics::Metrics;
use call::{TRIES, call, unless_conflict};
use owner::Owners;

pub use call::KeepError;
pub use mounted::MountedError;

/// The Secret with the authorities, in our namespace.
pub const SECRET: &str = "aliquot-webhook-tls";
/// Readiness: a valid leaf is served.
pub const CERTIFICATE: &str = "certificate";
/// Readiness: the configuration was seen as it must be.
pub const CONFIGURATION: &str = "configuration";

const MANAGER: &str = "aliquot-webhook";

/// What to keep, and where.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Our namespace.
    pub namespace: String,
    /// How the API server reaches us.
    pub target: Target,
    /// The resources' names, for the conditions.
    pub names: ResourceNames,
    /// Other resources of ours.
    pub extra: Vec<String>,
    /// Runtime classes of NVIDIA's runtime, for the conditions.
    pub nvidia_runtime_classes: Vec<String>,
    /// How long certificates live.
    pub lifetimes: Lifetimes,
    /// Where certificates are that somebody else makes; `None`: we make them.
    pub mounted: Option<PathBuf>,
    /// A pod's own label keeps it away from us, too.
    pub pods_may_ignore: bool,
}

/// Holds what the last pass left.
pub struct Keeper {
    plan: Plan,
    secrets: Api<Secret>,
    configurations: Api<MutatingWebhookConfiguration>,
    owners: Owners,
    certificates: Certificates,
    readiness: Readiness,
    metrics: Metrics,
    authorities: Authorities,
    leaf: Option<Leaf>,
}

impl Keeper {
    /// Nothing is read or written before the first pass.
    pub fn new(
        plan: Plan,
        client: Client,
        certificates: Certificates,
        readiness: Readiness,
        metrics: Metrics,
    ) -> Self {
        Self {
            secrets: Api::namespaced(client.clone(), &plan.namespace),
            owners: Owners::new(&client, &plan.namespace),
            configurations: Api::all(client),
            plan,
            certificates,
            readiness,
            metrics,
            authorities: Authorities::default(),
            leaf: None,
        }
    }

    /// Brings Secret, leaf and configuration to what they must be at `now`.
    ///
    /// The configuration is read before the Secret and written on the version
    /// that was read: so a replica that knows an older Secret cannot overwrite
    /// the bundle of one that knows a newer.
    pub async fn pass(&mut self, now: Timestamp) -> Result<(), KeepError> {
        let done = self.try_pass(now).await;
        match &self.leaf {
            Some(leaf) if now < leaf.expires => self.readiness.holds(CERTIFICATE),
            Some(leaf) => self
                .readiness
                .fails(CERTIFICATE, format!("expired {}", leaf.expires)),
            None => {}
        }
        done
    }

    async fn try_pass(&mut self, now: Timestamp) -> Result<(), KeepError> {
        for _ in 0..TRIES {
            let live = call("get", NAME, self.configurations.get_opt(NAME)).await?;
            let bundle = if let Some(folder) = self.plan.mounted.clone() {
                let leaf = mounted::read(&folder).map_err(KeepError::Mounted)?;
                let bundle = mounted::bundle(&leaf.issuer, &published(&encode(live.as_ref())?));
                self.serve(leaf)?;
                bundle
            } else {
                self.authorities = self.agree_on_authorities(now).await?;
                self.serve_leaf(live.as_ref(), now)?;
                self.authorities.bundle()
            };
            if self.configure(live, &bundle).await? {
                self.readiness.holds(CONFIGURATION);
                return Ok(());
            }
        }
        Err(KeepError::Contended { object: NAME })
    }

    /// The authorities of the Secret, renewed there where they are due. When the
    /// Secret is gone or unreadable it gets back what this replica holds.
    async fn agree_on_authorities(&self, now: Timestamp) -> Result<Authorities, KeepError> {
        let renew = |authorities: &Authorities| {
            authorities
                .renewed(now, &self.plan.lifetimes)
                .map_err(KeepError::Renew)
        };
        let owner = self.owners.of_secret().await?;
        for _ in 0..TRIES {
            let live = call("get", SECRET, self.secrets.get_opt(SECRET)).await?;
            let data = live.as_ref().and_then(|secret| secret.data.clone());
            let (found, problems) = Authorities::read(&data.unwrap_or_default());
            for problem in &problems {
                tracing::warn!(secret = SECRET, error = %problem, "dropping a broken entry");
            }
            let base = if found.is_empty() {
                &self.authorities
            } else {
                &found
            };
            let next = match renew(base)? {
                None if problems.is_empty()
                    && *base == found
                    && live.as_ref().is_some_and(|live| has(live, owner.as_ref())) =>
                {
                    return Ok(found);
                }
                None => base.clone(),
                Some(next) => next,
            };
            let version = live.as_ref().and_then(ResourceExt::resource_version);
            let object = secret(version, next.write(), owner.clone());
            let post = PostParams::default();
            let written = if live.is_some() {
                call(
                    "replace",
                    SECRET,
                    self.secrets.replace(SECRET, &post, &object),
                )
                .await
            } else {
                call("create", SECRET, self.secrets.create(&post, &object)).await
            };
            if unless_conflict(written)?.is_some() {
                tracing::info!(secret = SECRET, "certificate authorities written");
                return Ok(next);
            }
        }
        Err(KeepError::Contended { object: SECRET })
    }

    /// Serves a leaf of the authority that signs now, before it is needed.
    fn serve_leaf(
        &mut self,
        live: Option<&MutatingWebhookConfiguration>,
        now: Timestamp,
    ) -> Result<(), KeepError> {
        let live = encode(live)?;
        let lifetimes = &self.plan.lifetimes;
        let Some(issuer) = self.authorities.issuer(now, &published(&live), lifetimes) else {
            return Ok(());
        };
        let current = self.leaf.as_ref();
        if current.is_some_and(|leaf| !leaf.is_due(now) && leaf.issuer == issuer.certificate) {
            return Ok(());
        }
        let leaf = issuer
            .issue(&self.plan.target.names(), now, lifetimes.leaf)
            .map_err(KeepError::Renew)?;
        self.metrics.leaves_issued.inc();
        self.serve(leaf)
    }

    /// Serves this leaf, if it is another than before.
    fn serve(&mut self, leaf: Leaf) -> Result<(), KeepError> {
        let same = |old: &Leaf| old.certificate == leaf.certificate && old.key == leaf.key;
        if self.leaf.as_ref().is_some_and(same) {
            return Ok(());
        }
        self.certificates
            .replace(&leaf.certificate, &leaf.key)
            .map_err(KeepError::Serve)?;
        tracing::info!(expires = %leaf.expires, "serving a new certificate");
        self.metrics.leaf_expiry.set(leaf.expires.as_second());
        self.leaf = Some(leaf);
        Ok(())
    }

    /// Writes the configuration where it differs. `false` when somebody else
    /// wrote it meanwhile.
    async fn configure(
        &self,
        live: Option<MutatingWebhookConfiguration>,
        bundle: &str,
    ) -> Result<bool, KeepError> {
        let plan = &self.plan;
        let owner = self.owners.of_configuration().await?;
        let scope = Scope {
            target: &plan.target,
            namespace: &plan.namespace,
            names: (&plan.names, &plan.extra),
            nvidia_runtime_classes: &plan.nvidia_runtime_classes,
            pods_may_ignore: plan.pods_may_ignore,
        };
        let mut wanted = wanted(scope, bundle);
        if let Some(owner) = owner {
            wanted["metadata"]["ownerReferences"] = json!([owner]);
        }
        if conforms(&wanted, &encode(live.as_ref())?) {
            return Ok(true);
        }
        self.metrics.configuration_writes.inc();
        tracing::info!(configuration = NAME, present = live.is_some(), "writing");
        if let Some(version) = live.as_ref().and_then(ResourceExt::resource_version) {
            wanted["metadata"]["resourceVersion"] = json!(version);
        }
        let params = PatchParams::apply(MANAGER).force();
        let patch = Patch::Apply(&wanted);
        let applied = call(
            "apply",
            NAME,
            self.configurations.patch(NAME, &params, &patch),
        )
        .await;
        let Some(applied) = unless_conflict(applied)? else {
            return Ok(false);
        };
        self.replace_if_altered(&wanted["webhooks"], &applied).await
    }

    /// Server-side apply leaves list entries that others added; replacing does not.
    async fn replace_if_altered(
        &self,
        webhooks: &Value,
        applied: &MutatingWebhookConfiguration,
    ) -> Result<bool, KeepError> {
        let mut whole = encode(Some(applied))?;
        if conforms(webhooks, &whole["webhooks"]) {
            return Ok(true);
        }
        whole["webhooks"] = webhooks.clone();
        let object = serde_json::from_value(whole).map_err(KeepError::Encode)?;
        let post = PostParams {
            field_manager: Some(MANAGER.to_owned()),
            ..PostParams::default()
        };
        let replaced = call(
            "replace",
            NAME,
            self.configurations.replace(NAME, &post, &object),
        )
        .await;
        let Some(replaced) = unless_conflict(replaced)? else {
            return Ok(false);
        };
        if conforms(webhooks, &encode(Some(&replaced))?["webhooks"]) {
            return Ok(true);
        }
        Err(KeepError::Altered)
    }
}

/// Whether it has this owner, if there is one.
fn has(live: &Secret, owner: Option<&OwnerReference>) -> bool {
    owner.is_none_or(|owner| live.owner_references().iter().any(|one| one == owner))
}

fn secret(
    version: Option<String>,
    data: BTreeMap<String, ByteString>,
    owner: Option<OwnerReference>,
) -> Secret {
    let labels = [(
        "app.kubernetes.io/name".to_owned(),
        configuration::NAME.to_owned(),
    )];
    Secret {
        metadata: ObjectMeta {
            name: Some(SECRET.to_owned()),
            labels: Some(labels.into()),
            resource_version: version,
            owner_references: owner.map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        data: Some(data),
        type_: Some("Opaque".to_owned()),
        ..Secret::default()
    }
}

fn encode(live: Option<&MutatingWebhookConfiguration>) -> Result<Value, KeepError> {
    serde_json::to_value(live).map_err(KeepError::Encode)
}
