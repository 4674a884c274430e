//! The binary: reads flags, opens the listeners, and runs the reconciler.

use std::sync::Arc;

use aliquot_serve::tls::{Certificates, TlsListener, server_config};
use aliquot_serve::{Readiness, admin, http, stop, telemetry};
use aliquot_webhook::args::Args;
use aliquot_webhook::handler::{self, HandlerState};
use aliquot_webhook::metrics::Metrics;
use aliquot_webhook::reconciler::{
    self, CERTIFICATE, CONFIGURATION, Reconciler, ReconcilerSettings,
};
use aliquot_webhook::warn;
use anyhow::{Context, Result};
use clap::Parser;
use prometheus_client::registry::Registry;

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse();
    telemetry::init(args.log_format, &args.log_filter)?;
    let settings = Arc::new(args.settings()?);
    let plan = ReconcilerSettings {
        namespace: args.namespace.clone(),
        target: args.target()?,
        names: settings.names.clone(),
        extra: settings.extra.clone(),
        nvidia_runtime_classes: settings.nvidia_runtime_classes.clone(),
        lifetimes: args.lifetimes()?,
        mounted: args.certificates_dir.clone(),
        pods_may_ignore: settings.pods_may_ignore,
    };
    let client = aliquot_k8s::client::client(args.kubeconfig.as_deref()).await?;

    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let readiness = Readiness::new([CERTIFICATE, CONFIGURATION]);
    let stop = stop::on_signals(readiness.clone(), args.linger())?;
    let health = admin::router(readiness.clone(), Arc::new(registry));

    // The listener is open before the configuration sends requests to it.
    let certificates = Certificates::none();
    let config = server_config(&certificates)?;
    let listener = TlsListener::new(http::bind(args.listen).await?, config);
    let state = HandlerState {
        settings,
        metrics: metrics.clone(),
    };
    let router = handler::router(state.clone())
        .merge(warn::router(state))
        .merge(health.clone());
    let serving = tokio::spawn(http::serve(listener, router, stop.clone(), http::DRAIN));
    if let Some(addr) = args.admin_listen {
        let listener = http::plain(http::bind(addr).await?);
        tokio::spawn(http::serve(listener, health, stop.clone(), http::DRAIN));
    }
    tracing::info!(listen = %args.listen, reached_at = ?plan.target.names(), "serving admission reviews");

    let reconciler = Reconciler::new(plan, client.clone(), certificates, readiness, metrics);
    reconciler::run(reconciler, client, stop).await;
    serving.await?.context("the HTTPS listener failed")?;
    Ok(())
}
