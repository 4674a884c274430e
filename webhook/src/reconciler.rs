//! Reconciles what the webhook needs: the CAs in the Secret, the serving certificate in the
//! listener, and the CA bundle in the webhook configuration at the API server. The chart creates
//! Secret and configuration; all else in them is its own.
//!
//! Runs on a timer, and whenever the Secret or the configuration changes. While the API server is
//! away a replica stays ready: what was applied is still in effect.

use std::collections::BTreeMap;
use std::future::{Ready, ready};
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use aliquot_serve::Readiness;
use aliquot_serve::tls::{self, Certificates};
use futures::{Stream, StreamExt, stream};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use serde_json::{Map, Value, json};
use thiserror::Error;
use tokio_util::sync::CancellationToken;

use crate::certificates::mounted::{self, MountedError};
use crate::certificates::{CaSet, CertificateError, Lifetimes, ServingCertificate};
use crate::configuration::{NAME, bundle_patch, missing_webhook, published_bundle};
use crate::metrics::Metrics;

/// The Secret with the CAs, in the webhook's namespace.
pub const SECRET: &str = "aliquot-webhook-tls";
/// Readiness: a valid certificate is served.
pub const CERTIFICATE: &str = "certificate";
/// Readiness: the CA bundle was published in the configuration.
pub const CONFIGURATION: &str = "configuration";

const MANAGER: &str = "aliquot-webhook";

/// Deadline of one call to the API server. A failed call is not retried; the next reconciliation
/// repeats everything.
const DEADLINE: Duration = Duration::from_secs(5);
/// Attempts at one object while others write it too.
const ATTEMPTS: u32 = 5;
/// Longest time between two reconciliations, without any change.
const MAX_INTERVAL: Duration = Duration::from_secs(30);
/// Wait after a failed reconciliation.
const RETRY: Duration = Duration::from_secs(2);
/// Changes within this time lead to one reconciliation.
const SETTLE: Duration = Duration::from_millis(50);

/// How long the bundle keeps the CAs of others: a rollout that turns cert-manager on or off
/// replaces one replica after another.
const OTHERS_RETENTION: SignedDuration = SignedDuration::from_hours(1);

/// Reconciliations within one certificate's lifetime, so that renewal is never late.
const RECONCILIATIONS_PER_LIFETIME: u32 = 24;

#[derive(Clone, Debug)]
pub struct ReconcilerSettings {
    /// The webhook's namespace.
    pub namespace: String,
    /// The names and addresses by which the API server reaches the webhook.
    pub names: Vec<String>,
    /// How long certificates live.
    pub lifetimes: Lifetimes,
    /// Directory of certificates that something else issues; `None`: the webhook issues them.
    pub mounted: Option<PathBuf>,
}

/// The step of a reconciliation that failed. The next one starts from the beginning.
#[derive(Debug, Error)]
pub enum ReconcileError {
    #[error("cannot {verb} {object}")]
    Call {
        verb: &'static str,
        object: &'static str,
        source: kube::Error,
    },
    #[error("cannot {verb} {object}: no response within {DEADLINE:?}")]
    Timeout {
        verb: &'static str,
        object: &'static str,
    },
    #[error("cannot write {object}: it changed during each of {ATTEMPTS} attempts")]
    Conflict { object: &'static str },
    #[error("cannot renew certificates")]
    Renew(#[source] CertificateError),
    #[error("cannot read the mounted certificates")]
    Mounted(#[source] MountedError),
    #[error("cannot serve the new certificate")]
    Serve(#[source] tls::CertificateError),
    #[error("cannot encode the webhook configuration")]
    Encode(#[source] serde_json::Error),
    #[error("Secret {SECRET} does not exist; expected: as the chart creates it (helm upgrade)")]
    NoSecret,
    #[error(
        "MutatingWebhookConfiguration {NAME} does not exist; expected: as the chart creates it (helm upgrade)"
    )]
    NoConfiguration,
    #[error(
        "MutatingWebhookConfiguration {NAME} has no webhook {webhook}; expected: as the chart creates it (helm upgrade)"
    )]
    NoWebhook { webhook: &'static str },
}

/// Reconciles Secret, serving certificate and configuration, and remembers what the last
/// reconciliation did.
pub struct Reconciler {
    settings: ReconcilerSettings,
    secrets: Api<Secret>,
    configurations: Api<MutatingWebhookConfiguration>,
    certificates: Certificates,
    readiness: Readiness,
    metrics: Metrics,
    cas: CaSet,
    serving: Option<ServingCertificate>,
    /// The CA of the mounted certificate, and since when this replica has seen it published.
    published: Option<(String, Timestamp)>,
    /// The CAs of others in the published bundle, and since when this replica has seen them there.
    others: Option<(String, Timestamp)>,
}

impl Reconciler {
    /// Reads and writes nothing before the first reconciliation.
    pub fn new(
        settings: ReconcilerSettings,
        client: Client,
        certificates: Certificates,
        readiness: Readiness,
        metrics: Metrics,
    ) -> Self {
        Self {
            secrets: Api::namespaced(client.clone(), &settings.namespace),
            configurations: Api::all(client),
            settings,
            certificates,
            readiness,
            metrics,
            cas: CaSet::default(),
            serving: None,
            published: None,
            others: None,
        }
    }

    /// Brings Secret, serving certificate and CA bundle to their desired state at `now`.
    ///
    /// The configuration is read before the Secret and written on the version that was read, so a
    /// replica with an older Secret cannot overwrite the bundle of one with a newer Secret.
    pub async fn reconcile(&mut self, now: Timestamp) -> Result<(), ReconcileError> {
        let result = self.try_reconcile(now).await;
        match &self.serving {
            Some(serving) if now < serving.expires => self.readiness.pass(CERTIFICATE),
            Some(serving) => self
                .readiness
                .fail(CERTIFICATE, format!("expired {}", serving.expires)),
            None => {}
        }
        result
    }

    async fn try_reconcile(&mut self, now: Timestamp) -> Result<(), ReconcileError> {
        for _ in 0..ATTEMPTS {
            let found = call("get", NAME, self.configurations.get_opt(NAME)).await?;
            let live = serde_json::to_value(found).map_err(ReconcileError::Encode)?;
            let directory = self.settings.mounted.as_deref();
            let mounted = directory
                .map(mounted::read)
                .transpose()
                .map_err(ReconcileError::Mounted)?;
            let bundle = if let Some(serving) = &mounted {
                mounted::bundle(&serving.issuer, &published_bundle(&live))
            } else {
                self.cas = self.reconcile_secret(now).await?;
                self.issue_if_due(&live, now)?;
                self.cas.bundle() + &self.others(&published_bundle(&live), now)
            };
            if self.publish(&live, &bundle).await? {
                if let Some(serving) = mounted {
                    self.serve_published(serving, now)?;
                }
                self.readiness.pass(CONFIGURATION);
                return Ok(());
            }
        }
        Err(ReconcileError::Conflict { object: NAME })
    }

    /// The CAs of the Secret, renewed there where they are due. When it has none, or unreadable
    /// ones, those of this replica are written.
    async fn reconcile_secret(&self, now: Timestamp) -> Result<CaSet, ReconcileError> {
        let renew = |cas: &CaSet| {
            cas.renewed(now, &self.settings.lifetimes)
                .map_err(ReconcileError::Renew)
        };
        for _ in 0..ATTEMPTS {
            let live = call("get", SECRET, self.secrets.get_opt(SECRET))
                .await?
                .ok_or(ReconcileError::NoSecret)?;
            let (found, errors) = CaSet::read(&live.data.clone().unwrap_or_default());
            for error in &errors {
                tracing::warn!(secret = SECRET, %error, "removing an invalid CA from the Secret");
            }
            let base = if found.is_empty() { &self.cas } else { &found };
            let next = match renew(base)? {
                None if errors.is_empty() && *base == found => return Ok(found),
                None => base.clone(),
                Some(next) => next,
            };
            let (params, patch) = (params(), Patch::Merge(data_patch(&live, &next.write())));
            let patched = call("patch", SECRET, self.secrets.patch(SECRET, &params, &patch)).await;
            if unless_conflict(patched)?.is_some() {
                tracing::info!(secret = SECRET, "wrote the certificate authorities");
                return Ok(next);
            }
        }
        Err(ReconcileError::Conflict { object: SECRET })
    }

    /// Issues and serves a new certificate of the CA that signs now, where one is due. While that CA is
    /// not published, because somebody replaced those of the Secret, one that is trusted stays.
    fn issue_if_due(&mut self, live: &Value, now: Timestamp) -> Result<(), ReconcileError> {
        let lifetimes = &self.settings.lifetimes;
        let published = published_bundle(live);
        let Some(issuer) = self.cas.issuer(now, &published, lifetimes) else {
            return Ok(());
        };
        let trusts = |issuer: &str| published.contains(issuer);
        let stays = |one: &ServingCertificate| {
            one.issuer == issuer.certificate || trusts(&one.issuer) && !trusts(&issuer.certificate)
        };
        let current = self.serving.as_ref();
        if current.is_some_and(|one| !one.is_due(now) && stays(one)) {
            return Ok(());
        }
        let serving = issuer
            .issue(&self.settings.names, now, lifetimes.serving)
            .map_err(ReconcileError::Renew)?;
        self.metrics.certificates_issued.inc();
        self.serve(serving)
    }

    /// The CAs of others that the bundle keeps: replicas with mounted certificates may still serve,
    /// and would publish theirs again.
    fn others(&mut self, published: &str, now: Timestamp) -> String {
        let others = self.cas.others(published, now);
        let since = seen(&mut self.others, &others, now);
        if now < since + OTHERS_RETENTION {
            return others;
        }
        // A replica that still needs them publishes them again, for as long.
        self.others = None;
        String::new()
    }

    /// Serves a mounted certificate once its CA has been published for so long that every API server has
    /// received it; at once where nothing else is valid.
    fn serve_published(
        &mut self,
        serving: ServingCertificate,
        now: Timestamp,
    ) -> Result<(), ReconcileError> {
        let since = seen(&mut self.published, &serving.issuer, now);
        let valid = |one: &ServingCertificate| now < one.expires && one.issuer != serving.issuer;
        let received = now >= since + self.settings.lifetimes.publication_delay();
        if !received && self.serving.as_ref().is_some_and(valid) {
            return Ok(());
        }
        self.serve(serving)
    }

    fn serve(&mut self, serving: ServingCertificate) -> Result<(), ReconcileError> {
        let same = |old: &ServingCertificate| {
            old.certificate == serving.certificate && old.key == serving.key
        };
        if self.serving.as_ref().is_some_and(same) {
            return Ok(());
        }
        self.certificates
            .replace(&serving.certificate, &serving.key)
            .map_err(ReconcileError::Serve)?;
        tracing::info!(expires = %serving.expires, "serving a new certificate");
        let expiry = serving.expires.as_second();
        self.metrics.certificate_expiry.set(expiry);
        self.serving = Some(serving);
        Ok(())
    }

    /// Publishes the bundle in the configuration. `false` when another client has written it
    /// meanwhile.
    async fn publish(&self, live: &Value, bundle: &str) -> Result<bool, ReconcileError> {
        if live.is_null() {
            return Err(ReconcileError::NoConfiguration);
        }
        if let Some(webhook) = missing_webhook(live) {
            return Err(ReconcileError::NoWebhook { webhook });
        }
        let Some(patch) = bundle_patch(live, bundle) else {
            return Ok(true);
        };
        self.metrics.configuration_writes.inc();
        tracing::info!(configuration = NAME, "publishing the CA bundle");
        let (params, patch) = (params(), Patch::Strategic(patch));
        let request = self.configurations.patch(NAME, &params, &patch);
        let patched = call("patch", NAME, request).await;
        Ok(unless_conflict(patched)?.is_some())
    }
}

/// Since when this replica has seen `text`, which it remembers.
fn seen(last: &mut Option<(String, Timestamp)>, text: &str, now: Timestamp) -> Timestamp {
    let known = last.take().filter(|(known, _)| known == text);
    let first = || (text.to_owned(), now);
    last.insert(known.unwrap_or_else(first)).1
}

fn params() -> PatchParams {
    PatchParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PatchParams::default()
    }
}

/// The merge patch that replaces the data of the Secret, on the version that was read.
fn data_patch(live: &Secret, next: &BTreeMap<String, ByteString>) -> Value {
    let gone = live.data.iter().flatten();
    let mut data: Map<String, Value> = gone.map(|(key, _)| (key.clone(), Value::Null)).collect();
    data.extend(next.iter().map(|(key, bytes)| (key.clone(), json!(bytes))));
    json!({"metadata": {"resourceVersion": live.metadata.resource_version}, "data": data})
}

/// A call with the deadline; its error names verb and object.
async fn call<T>(
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
fn unless_conflict<T>(written: Result<T, ReconcileError>) -> Result<Option<T>, ReconcileError> {
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

/// Reconciles until `stop` is cancelled.
pub async fn run(mut reconciler: Reconciler, client: Client, stop: CancellationToken) {
    let interval = interval(&reconciler.settings.lifetimes);
    let mut changes = pin!(changes(client, &reconciler.settings.namespace));
    loop {
        let wait = match reconciler.reconcile(Timestamp::now()).await {
            Ok(()) => interval,
            Err(error) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                tracing::warn!(%error, cause, "cannot reconcile certificates or webhook configuration");
                interval.min(RETRY)
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
            () = async {
                changes.next().await;
                tokio::time::sleep(SETTLE).await;
            } => {}
        }
    }
}

fn interval(lifetimes: &Lifetimes) -> Duration {
    let shortest = lifetimes.ca.min(lifetimes.serving).unsigned_abs();
    (shortest / RECONCILIATIONS_PER_LIFETIME).min(MAX_INTERVAL)
}

/// One item for each change of either object. Never ends: an interrupted watch is restarted with
/// back-off.
fn changes(client: Client, namespace: &str) -> impl Stream<Item = ()> + use<> {
    let secrets = Api::<Secret>::namespaced(client.clone(), namespace);
    let configurations = Api::<MutatingWebhookConfiguration>::all(client);
    let secret = watcher::watch_object(secrets, SECRET).default_backoff();
    let configuration = watcher::watch_object(configurations, NAME).default_backoff();
    stream::select(
        secret.filter_map(|event| on_event(SECRET, event.as_ref().err())),
        configuration.filter_map(|event| on_event(NAME, event.as_ref().err())),
    )
}

fn on_event(object: &'static str, error: Option<&watcher::Error>) -> Ready<Option<()>> {
    let changed = error.is_none();
    if let Some(error) = error {
        tracing::debug!(object, %error, "watch interrupted");
    }
    ready(changed.then_some(()))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use axum::http::{Method, Request, Response};
    use kube::client::Body;
    use parking_lot::Mutex;
    use prometheus_client::registry::Registry;
    use tower::service_fn;

    use super::*;
    use crate::certificates::Ca;
    use crate::configuration::tests::created;

    const HOUR: SignedDuration = SignedDuration::from_hours(1);

    /// The API server with configuration and Secret, which it lets change only while it is told to.
    #[derive(Clone)]
    struct ApiServer {
        configuration: Arc<Mutex<Value>>,
        secret: Arc<Mutex<Value>>,
        accepts: Arc<AtomicBool>,
    }

    impl ApiServer {
        fn new() -> Self {
            let secret = json!({"metadata": {"name": SECRET, "namespace": "n"}});
            Self {
                configuration: Arc::new(Mutex::new(created())),
                secret: Arc::new(Mutex::new(secret)),
                accepts: Arc::default(),
            }
        }

        /// A replica with the certificates that are mounted, or with its own.
        fn replica(&self, mounted: Option<&Path>) -> Reconciler {
            let settings = ReconcilerSettings {
                namespace: "n".to_owned(),
                names: vec!["w.n.svc".to_owned()],
                lifetimes: Lifetimes {
                    ca: HOUR * 24,
                    serving: HOUR,
                },
                mounted: mounted.map(Path::to_owned),
            };
            let api = self.clone();
            let client = Client::new(service_fn(move |request| api.clone().answer(request)), "n");
            Reconciler::new(
                settings,
                client,
                Certificates::none(),
                Readiness::new([]),
                Metrics::register(&mut Registry::default()),
            )
        }

        fn published(&self) -> String {
            published_bundle(&self.configuration.lock())
        }

        async fn answer(self, request: Request<Body>) -> Result<Response<Body>, Infallible> {
            let is_secret = request.uri().path().ends_with(SECRET);
            if request.method() == Method::PATCH {
                if !self.accepts.load(Ordering::Relaxed) {
                    let mut answer = Response::new(Body::from(b"{}".to_vec()));
                    *answer.status_mut() = axum::http::StatusCode::SERVICE_UNAVAILABLE;
                    return Ok(answer);
                }
                let body = request.into_body().collect_bytes().await.unwrap();
                let patch: Value = serde_json::from_slice(&body).unwrap();
                if is_secret {
                    self.secret.lock()["data"] = patch["data"].clone();
                } else {
                    let bundle = &patch["webhooks"][0]["clientConfig"]["caBundle"];
                    let mut configuration = self.configuration.lock();
                    let webhooks = configuration["webhooks"].as_array_mut().unwrap();
                    for webhook in webhooks {
                        webhook["clientConfig"]["caBundle"] = bundle.clone();
                    }
                }
            }
            let object = if is_secret {
                &self.secret
            } else {
                &self.configuration
            };
            let text = object.lock().to_string();
            Ok(Response::new(Body::from(text.into_bytes())))
        }
    }

    fn mount(directory: &Path, now: Timestamp) -> String {
        let ca = Ca::create(now, HOUR * 24).unwrap();
        let issued = ca.issue(&["w.n.svc".to_owned()], now, HOUR).unwrap();
        for (name, text) in [
            ("tls.crt", &issued.certificate),
            ("tls.key", &issued.key),
            ("ca.crt", &issued.issuer),
        ] {
            std::fs::write(directory.join(name), text).unwrap();
        }
        issued.certificate
    }

    #[tokio::test]
    async fn serves_mounted_certificate_after_its_ca_is_published() {
        let directory = tempfile::tempdir().unwrap();
        let api = ApiServer::new();
        let mut reconciler = api.replica(Some(directory.path()));
        let served = |reconciler: &Reconciler| {
            let serving = reconciler.serving.as_ref();
            serving.map(|serving| serving.certificate.clone())
        };
        let mut now: Timestamp = "2026-11-22T10:00:00Z".parse().unwrap();

        let first = mount(directory.path(), now);
        assert!(reconciler.reconcile(now).await.is_err());
        assert_eq!(served(&reconciler), None, "its CA is not published");
        api.accepts.store(true, Ordering::Relaxed);
        reconciler.reconcile(now).await.unwrap();
        assert_eq!(served(&reconciler), Some(first.clone()));

        now += HOUR / 2;
        let second = mount(directory.path(), now);
        reconciler.reconcile(now).await.unwrap();
        assert_eq!(api.published().matches("BEGIN").count(), 2);
        assert_eq!(served(&reconciler), Some(first), "not received everywhere");
        now += SignedDuration::from_mins(1);
        reconciler.reconcile(now).await.unwrap();
        assert_eq!(served(&reconciler), Some(second));

        now += HOUR;
        let third = mount(directory.path(), now);
        reconciler.reconcile(now).await.unwrap();
        assert_eq!(served(&reconciler), Some(third), "the second has expired");
    }

    #[tokio::test]
    async fn own_and_mounted_certificates_are_trusted_together() {
        let directory = tempfile::tempdir().unwrap();
        let api = ApiServer::new();
        api.accepts.store(true, Ordering::Relaxed);
        let mut now: Timestamp = "2026-11-22T10:00:00Z".parse().unwrap();
        mount(directory.path(), now);
        let mut mounted = api.replica(Some(directory.path()));
        let mut own = api.replica(None);

        for _ in 0..3 {
            mounted.reconcile(now).await.unwrap();
            own.reconcile(now).await.unwrap();
            for replica in [&mounted, &own] {
                let serving = replica.serving.as_ref().unwrap();
                assert!(api.published().contains(serving.issuer.trim()));
            }
        }
        let writes = [&mounted, &own].map(|one| one.metrics.configuration_writes.get());
        assert_eq!(writes, [1, 1], "each publishes its CA once");

        now += OTHERS_RETENTION;
        own.reconcile(now).await.unwrap();
        assert_eq!(api.published(), own.cas.bundle(), "no rollout takes longer");
        mounted.reconcile(now).await.unwrap();
        own.reconcile(now).await.unwrap();
        assert_eq!(api.published().matches("BEGIN").count(), 2, "this one does");
    }

    #[tokio::test]
    async fn serves_certificate_of_replaced_cas_after_their_publication() {
        let api = ApiServer::new();
        api.accepts.store(true, Ordering::Relaxed);
        let mut replica = api.replica(None);
        let issuer = |replica: &Reconciler| replica.serving.as_ref().unwrap().issuer.clone();
        let now: Timestamp = "2026-11-22T10:00:00Z".parse().unwrap();
        replica.reconcile(now).await.unwrap();
        let first = issuer(&replica);

        let next = CaSet::default().renewed(now, &replica.settings.lifetimes);
        let next = next.unwrap().unwrap();
        api.secret.lock()["data"] = json!(next.write());
        api.accepts.store(false, Ordering::Relaxed);
        assert!(replica.reconcile(now).await.is_err());
        assert_eq!(issuer(&replica), first, "the next CA is not published");
        api.accepts.store(true, Ordering::Relaxed);
        replica.reconcile(now).await.unwrap();
        assert!(api.published().contains(&issuer(&replica)));
        replica.reconcile(now).await.unwrap();
        assert_eq!(issuer(&replica), next.bundle());
    }

    #[test]
    fn reconciles_often_enough_for_shortest_lifetime() {
        for (ca, serving, expected) in [
            (8760 * 3600, 720 * 3600, MAX_INTERVAL),
            (600, 48, Duration::from_secs(2)),
            (24, 600, Duration::from_secs(1)),
        ] {
            let lifetimes = Lifetimes {
                ca: SignedDuration::from_secs(ca),
                serving: SignedDuration::from_secs(serving),
            };
            assert_eq!(interval(&lifetimes), expected);
        }
    }
}
