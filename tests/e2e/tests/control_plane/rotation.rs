//! Certificates change under load and no admission fails.

use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_e2e::http;
use aliquot_e2e::pods::simple;
use aliquot_e2e::stack::{Kind, Stack};
use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::PostParams;

/// How long pods are created; leaves live 3 s and authorities 6 s meanwhile.
const LOAD: Duration = Duration::from_secs(15);
const WORKERS: usize = 4;

/// Issue D1, webhook: rotation before expiry without a dropped connection.
pub(crate) async fn under_load(stack: Arc<Stack>) -> Result<()> {
    stack.terminate(Kind::Webhook).await?;
    let lives = ["--leaf-lifetime", "3s", "--ca-lifetime", "6s"];
    stack.start_webhook(&lives).await?;

    let end = Instant::now() + LOAD;
    let workers = (0..WORKERS).map(|worker| create_until(&stack, worker, end));
    let created: usize = try_join_all(workers).await?.into_iter().sum();
    let webhook = stack.address(Kind::Webhook);
    let leaves = http::metric(webhook, "aliquot_webhook_leaves_issued_total", &[]).await?;
    ensure!(created > 50, "only {created} pods were reviewed");
    ensure!(leaves >= 4.0, "only {leaves} leaves were issued");

    stack.terminate(Kind::Webhook).await?;
    stack.start_webhook(&[]).await
}

/// Creates pods that the webhook reviews (dry runs, which it reviews alike).
async fn create_until(stack: &Stack, worker: usize, end: Instant) -> Result<usize> {
    let pods: Api<Pod> = Api::namespaced(stack.cluster.admin()?, "default");
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let mut created = 0;
    while Instant::now() < end {
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
