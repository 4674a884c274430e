//! The binary: reads flags, opens the listeners, and runs the reconciler.

use std::sync::Arc;

use aliquot_k8s::access;
use aliquot_serve::access_control::{self, AccessControl};
use aliquot_serve::http::Limits;
use aliquot_serve::tls::{Certificates, server_config};
use aliquot_serve::{Readiness, admin, http, stop, telemetry};
use aliquot_webhook::args::Args;
use aliquot_webhook::metrics::Metrics;
use aliquot_webhook::reconciler::{self, CERTIFICATE, CONFIGURATION, Reconciler};
use aliquot_webhook::server::{self, HandlerState};
use anyhow::Result;
use clap::Parser;
use prometheus_client::registry::Registry;

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse();
    telemetry::init(args.log_format, &args.log_filter)?;
    let settings = Arc::new(args.settings()?);
    let plan = args.reconciler()?;
    let client = aliquot_k8s::client::client(args.kubeconfig.as_deref()).await?;

    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let readiness = Readiness::new([CERTIFICATE, CONFIGURATION]);
    let stop = stop::on_signals(readiness.clone(), args.shutdown_delay())?;

    // The listener is open before the configuration sends requests to it.
    let certificates = Certificates::none();
    let config = server_config(&certificates, None)?;
    let listener = http::bind(args.listen).await?;
    let state = HandlerState::new(settings, metrics.clone());
    let router = server::router(state).merge(admin::health(readiness.clone()));
    let limits = Limits::new(server::REVIEW_BYTES);
    let serving = tokio::spawn(http::serve(
        listener,
        Some(config),
        router,
        limits,
        stop.clone(),
    ));
    if let Some(addr) = args.admin_listen {
        let listener = http::bind(addr).await?;
        let reviewer = access::reviewer(client.clone());
        let control = args.authenticate.then(|| AccessControl::new(reviewer, []));
        let router = admin::router(readiness.clone(), Arc::new(registry));
        tokio::spawn(access_control::serve(
            listener,
            router,
            control.transpose()?,
            stop.clone(),
        ));
    }
    tracing::info!(listen = %args.listen, reached_at = ?plan.names, "serving admission reviews");

    let reconciler = Reconciler::new(plan, client.clone(), certificates, readiness, metrics);
    reconciler::run(reconciler, client, stop).await;
    serving.await?;
    Ok(())
}
