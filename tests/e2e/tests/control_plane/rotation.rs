//! Certificates change under load and no admission fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use aliquot_cluster::until;
use aliquot_cluster::wait::{PATIENCE, eventually, sleep};
use aliquot_e2e::http;
use aliquot_e2e::pods::simple;
use aliquot_e2e::stack::{Kind, Stack};
use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use futures::try_join;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::PostParams;

/// How long pods are created, at least. Meanwhile serving certificates live 9 s and CAs 18 s: a
/// third of that is left for a new one on a busy machine, too.
const LOAD: Duration = Duration::from_secs(15);
/// Serving certificates that are issued meanwhile; the third one is of a new CA.
const CERTIFICATES: f64 = 4.0;
const WORKERS: usize = 4;

/// Rotation before expiry without a dropped connection.
pub(crate) async fn under_load(stack: Arc<Stack>) -> Result<()> {
    stack.terminate(Kind::Webhook).await?;
    let lifetimes = ["--certificate-lifetime", "9s", "--ca-lifetime", "18s"];
    stack.start_webhook(&lifetimes).await?;

    let (began, over) = (Instant::now(), AtomicBool::new(false));
    let workers = (0..WORKERS).map(|worker| create_until(&stack, worker, &over));
    let issued = async {
        let webhook = stack.address(Kind::Webhook);
        let issued = eventually(PATIENCE, "certificates to be issued", || async {
            let issued =
                http::metric(webhook, "aliquot_webhook_certificates_issued_total", &[]).await?;
            until!(issued >= CERTIFICATES, "only {issued}");
            Ok(Some(()))
        });
        let issued = issued.await;
        sleep(LOAD.saturating_sub(began.elapsed())).await;
        over.store(true, Ordering::Relaxed);
        issued
    };
    let (created, ()) = try_join!(try_join_all(workers), issued)?;
    let created: usize = created.into_iter().sum();
    ensure!(created > 50, "only {created} pods were reviewed");

    stack.terminate(Kind::Webhook).await?;
    stack.start_webhook(&[]).await
}

/// Until it is over, creates pods that the webhook reviews (dry runs, which it reviews alike).
async fn create_until(stack: &Stack, worker: usize, over: &AtomicBool) -> Result<usize> {
    let pods: Api<Pod> = Api::namespaced(stack.cluster.admin()?, "default");
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let mut created = 0;
    while !over.load(Ordering::Relaxed) {
        let name = format!("rotation-{worker}-{created}");
        let pod = serde_json::from_value(simple("default", &name, &[("gpu", "1")]))?;
        let reviewed = pods.create(&dry_run, &pod).await;
        let reviewed = reviewed.with_context(|| format!("after {created} pods"))?;
        let scheduler = reviewed.spec.and_then(|spec| spec.scheduler_name);
        ensure!(
            scheduler.as_deref() == Some("aliquot-scheduler"),
            "not reviewed: {scheduler:?}"
        );
        created += 1;
    }
    Ok(created)
}
