//! Limits of a namespace, on the real API server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_cluster::until;
use aliquot_cluster::wait::{PATIENCE, eventually, give_up};
use aliquot_e2e::figures::report;
use aliquot_e2e::http::metric;
use aliquot_e2e::pods::container;
use aliquot_e2e::pool::{Pool, Shape, node_of};
use aliquot_e2e::stack::{Kind, Stack};
use anyhow::{Result, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

/// Between a quota that leaves more and the last Binding that uses it. A pod that was tried often
/// waits up to 10 s in its backoff; without a requeue it waits five minutes.
const REQUEUED: Duration = Duration::from_secs(30);

fn hard(resource: &str, most: &str) -> Value {
    json!({"spec": {"hard": {format!("limits.nvidia.com/{resource}"): most}}})
}

pub(crate) async fn create(quotas: &Api<ResourceQuota>, name: &str, hard: Value) -> Result<()> {
    let mut quota = hard;
    quota["metadata"] = json!({"name": name});
    let quota = serde_json::from_value(quota)?;
    quotas.create(&PostParams::default(), &quota).await?;
    Ok(())
}

/// Waits until the scheduler knows a quota of the namespace.
pub(crate) async fn known(stack: &Stack, namespace: &str, quota: &str, most: f64) -> Result<()> {
    let labels = [
        format!("namespace=\"{namespace}\""),
        format!("quota=\"{quota}\""),
    ];
    let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
    let address = stack.address(Kind::Scheduler);
    eventually(PATIENCE, "a quota in the ledger", || async {
        let found = metric(address, "aliquot_scheduler_quota_limit", &labels).await?;
        until!((found - most).abs() < 0.5, "{found}");
        Ok(Some(()))
    })
    .await
}

/// Waits until so many pods are bound; more are never.
async fn bound(pods: &Api<Pod>, expected: usize) -> Result<()> {
    let what = format!("{expected} bound pods");
    eventually(PATIENCE, &what, || async {
        let all = pods.list(&ListParams::default()).await?;
        let found = all
            .items
            .iter()
            .filter(|pod| node_of(pod).is_some())
            .count();
        if found > expected {
            return Err(give_up(format!("{found} are bound")));
        }
        until!(found == expected, "{found}");
        Ok(Some(()))
    })
    .await
}

/// Two quotas hold together under twenty pods at once, and what is raised or
/// deleted lets exactly those in that fit.
pub(crate) async fn many_at_once(stack: Arc<Stack>) -> Result<()> {
    let shape = Shape {
        gpus: 2,
        replicas: 20,
    };
    let nodes = [("many-1".to_owned(), shape), ("many-2".to_owned(), shape)];
    let pool = Pool::open(&stack, "many", &nodes).await?;
    let quotas: Api<ResourceQuota> = Api::namespaced(stack.cluster.admin()?, "many");
    let pods: Api<Pod> = Api::namespaced(stack.cluster.admin()?, "many");
    create(&quotas, "wide", hard("gpumem", "8000")).await?;
    create(&quotas, "tight", hard("gpucores", "50")).await?;
    known(&stack, "many", "wide", 8000.0).await?;
    known(&stack, "many", "tight", 50.0).await?;

    let names: Vec<_> = (0..20).map(|number| format!("p{number:02}")).collect();
    let limits = [("gpumem", "1000"), ("gpucores", "10")];
    try_join_all(names.iter().map(|name| pool.create(name, &limits))).await?;
    bound(&pods, 5).await?;
    let all = pods.list(&ListParams::default()).await?;
    let mut waiting = all.items.iter().filter(|pod| node_of(pod).is_none());
    let waiting = waiting.next().and_then(|pod| pod.metadata.name.clone());
    let why = "Refused: GPU request fits none of 2 nodes: 2 ResourceQuotaNotFit (namespace \
               many: limits.nvidia.com/gpucores used 50, asked 10, limit 50 of quota tight)";
    pool.event(&waiting.unwrap_or_default(), why).await?;

    let start = Instant::now();
    let raised = Patch::Merge(hard("gpucores", "100"));
    quotas
        .patch("tight", &PatchParams::default(), &raised)
        .await?;
    bound(&pods, 8).await?;
    let took = start.elapsed();
    report("three pods bound after their quota was raised", took);
    ensure!(took < REQUEUED, "{took:?}, allowed {REQUEUED:?}");

    let start = Instant::now();
    quotas.delete("wide", &DeleteParams::default()).await?;
    bound(&pods, 10).await?;
    let took = start.elapsed();
    report("two more after a quota was deleted", took);
    ensure!(took < REQUEUED, "{took:?}, allowed {REQUEUED:?}");
    let used = metric(
        stack.address(Kind::Scheduler),
        "aliquot_scheduler_quota_used",
        &["quota=\"tight\""],
    )
    .await?;
    ensure!((used - 100.0).abs() < 0.5, "{used}");
    pool.close().await
}

/// The effective rule with percentages, as in HAMi's W9: two app containers of
/// half a GPU each under three quarters of a GPU.
pub(crate) async fn init_containers(stack: Arc<Stack>) -> Result<()> {
    let shape = Shape {
        gpus: 2,
        replicas: 10,
    };
    let pool = Pool::open(&stack, "halves", &[("halves-1".to_owned(), shape)]).await?;
    let quotas: Api<ResourceQuota> = Api::namespaced(stack.cluster.admin()?, "halves");
    create(&quotas, "q", hard("gpumem", "61440")).await?;
    known(&stack, "halves", "q", 61_440.0).await?;
    let part = |name: &str, percent| container(name, &[("gpumem-percentage", percent)]);
    let pod = |name: &str, init: &[Value], apps: &[Value]| {
        let mut pod = pool.pod(name, &[]);
        pod["spec"]["initContainers"] = json!(init);
        pod["spec"]["containers"] = json!(apps);
        pod
    };
    let halves = [part("a", "50"), part("b", "50")];
    let before = [part("i", "50"), part("j", "50")];
    for (name, init) in [("plain", &[][..]), ("with-init", &before)] {
        stack.cluster.create_pod(pod(name, init, &halves)).await?;
        let event = pool.event(name, "Refused: ").await?;
        let why = "1 ResourceQuotaNotFit (namespace halves: limits.nvidia.com/gpumem used 0, \
                   asked 81920, limit 61440 of quota q)";
        ensure!(event.ends_with(why), "{event}");
    }
    let quarter = [part("a", "25")];
    let fits = pod("by-the-larger", &before, &quarter);
    stack.cluster.create_pod(fits).await?;
    pool.bound("by-the-larger").await?;
    let used = metric(
        stack.address(Kind::Scheduler),
        "aliquot_scheduler_quota_used",
        &["namespace=\"halves\""],
    )
    .await?;
    ensure!((used - 40_960.0).abs() < 0.5, "{used}");
    pool.close().await
}
