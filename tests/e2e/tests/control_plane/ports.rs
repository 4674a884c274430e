//! Metrics, queries and the page on a real API server: who gets them, by token and role.

use std::net::SocketAddr;
use std::sync::Arc;

use aliquot_cluster::wait::{OrNotYet as _, PATIENCE, eventually};
use aliquot_e2e::stack::{Kind, NAMESPACE, Stack};
use anyhow::{Context as _, Result, ensure};
use hyper::Request;
use hyper::header::{HeaderName, HeaderValue};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use kube::{Api, Client, Config};
use serde_json::json;

/// What names the pods of all namespaces.
const SECRET: [&str; 7] = [
    "/metrics",
    "/ledger",
    "/top",
    "/explain/default/p",
    "/page/state",
    "/page/usage",
    "/page/history",
];
const OPEN: [&str; 4] = ["/healthz", "/readyz", "/page/", "/page/page.js"];

pub(crate) async fn guarded(stack: Arc<Stack>) -> Result<()> {
    let address = stack.cluster.part_address(8);
    stack.terminate(Kind::Scheduler).await?;
    let admin = address.to_string();
    let flags = ["--admin-listen", &admin, "--authenticate=true"];
    stack.start_scheduler(&flags).await?;
    let checked = checked(&stack, address).await;
    stack.terminate(Kind::Scheduler).await?;
    stack.start_scheduler(&[]).await?;
    checked
}

async fn checked(stack: &Stack, address: SocketAddr) -> Result<()> {
    let nobody = Port::at(address, None)?;
    eventually(PATIENCE, "the scheduler to be ready", || async {
        nobody
            .answers("/readyz", 200, "")
            .await
            .or_not_yet()
            .map(Some)
    })
    .await?;
    for path in OPEN {
        nobody.answers(path, 200, "").await?;
    }
    for path in SECRET {
        nobody.answers(path, 401, "requires a token").await?;
    }
    let made_up = Port::at(address, Some("authorization: Bearer made.up.token"))?;
    made_up.answers("/top", 401, "not of any account").await?;

    let accounts: Api<ServiceAccount> = Api::namespaced(stack.cluster.admin()?, NAMESPACE);
    for name in ["stranger", "tenant", "prometheus"] {
        let account = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        accounts.create(&PostParams::default(), &account).await?;
    }
    for command in [
        &*format!(
            "create clusterrolebinding prometheus --clusterrole=aliquot-metrics-reader --serviceaccount={NAMESPACE}:prometheus"
        ),
        "create role tenant -n default --verb=get --resource=pods",
        &*format!(
            "create rolebinding tenant -n default --role=tenant --serviceaccount={NAMESPACE}:tenant"
        ),
    ] {
        let command: Vec<&str> = command.split(' ').collect();
        stack.cluster.kubectl(&command).await?.success()?;
    }

    let stranger = token(&accounts, "stranger").await?;
    for header in ["authorization: Bearer", "aliquot-token:"] {
        let stranger = Port::at(address, Some(&format!("{header} {stranger}")))?;
        for path in SECRET {
            let why = format!("system:serviceaccount:{NAMESPACE}:stranger may not get {path}");
            stranger.answers(path, 403, &why).await?;
        }
    }
    // Why a pod waits is for everybody who may get the pod, and nothing else is.
    let tenant = token(&accounts, "tenant").await?;
    let tenant = Port::at(address, Some(&format!("aliquot-token: {tenant}")))?;
    tenant.answers("/explain/default/p", 404, "").await?;
    let other = format!("/explain/{NAMESPACE}/p");
    for path in ["/top", "/metrics", &*other] {
        tenant.answers(path, 403, &format!("may not get {path}")).await?;
    }
    let prometheus = token(&accounts, "prometheus").await?;
    let prometheus = Port::at(
        address,
        Some(&format!("authorization: Bearer {prometheus}")),
    )?;
    prometheus.answers("/metrics", 200, "aliquot_").await?;
    prometheus.answers("/top", 403, "may not get /top").await?;
    let viewer = token(&accounts, "aliquot-viewer").await?;
    let viewer = Port::at(address, Some(&format!("aliquot-token: {viewer}")))?;
    for path in ["/metrics", "/ledger", "/top", "/page/state"] {
        viewer.answers(path, 200, "").await?;
    }
    viewer.answers("/explain/default/p", 404, "").await
}

async fn token(accounts: &Api<ServiceAccount>, name: &str) -> Result<String> {
    let (params, request) = (PostParams::default(), TokenRequest::default());
    let made = accounts
        .create_token_request(name, &params, &request)
        .await?;
    Ok(made.status.context("a token")?.token)
}

/// The scheduler's port, asked with a header.
struct Port(Client);

impl Port {
    fn at(address: SocketAddr, header: Option<&str>) -> Result<Self> {
        let mut config = Config::new(format!("https://{address}").parse()?);
        config.accept_invalid_certs = true;
        if let Some(header) = header {
            let (name, value) = header.split_once(':').context("a header")?;
            let name: HeaderName = name.parse()?;
            config
                .headers
                .push((name, HeaderValue::from_str(value.trim())?));
        }
        Ok(Self(Client::try_from(config)?))
    }

    /// The answer to `GET path` has this status and contains this text.
    async fn answers(&self, path: &str, status: u16, text: &str) -> Result<()> {
        let request = Request::get(path).body(Vec::new())?;
        let (got, body) = match self.0.request_text(request).await {
            Ok(body) => (200, body),
            Err(kube::Error::Api(status)) => (status.code, status.message.clone()),
            Err(error) => return Err(error).context(path.to_owned()),
        };
        ensure!(got == status && body.contains(text), "{path}: {got} {body}");
        Ok(())
    }
}
