//! Requests as resources and as annotations, side by side in one namespace.

use std::sync::Arc;

use aliquot_cluster::until;
use aliquot_cluster::wait::{PATIENCE, eventually};
use aliquot_e2e::http::metric;
use aliquot_e2e::pods::allocation;
use aliquot_e2e::pool::{Pool, Shape};
use aliquot_e2e::stack::{Kind, Stack};
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{Namespace, Pod, ResourceQuota};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

const REQUEST: &str = "aliquot.dev/request";
const LIMITS: [(&str, &str); 2] = [("gpumem", "1000"), ("gpucores", "10")];

/// The limits and the request annotation that the API server stores.
fn stored(pod: &Pod) -> Result<(Value, Option<String>)> {
    let annotations = pod.metadata.annotations.as_ref();
    let text = annotations.and_then(|all| all.get(REQUEST)).cloned();
    let spec = pod.spec.as_ref().context("a spec")?;
    let resources = spec.containers[0].resources.as_ref();
    let resources = resources.context("resources")?;
    ensure!(resources.limits == resources.requests, "{resources:?}");
    Ok((serde_json::to_value(&resources.limits)?, text))
}

/// The namespace's label moves the amounts of new pods; the quota and the scheduler count both.
pub(crate) async fn both(stack: Arc<Stack>) -> Result<()> {
    let shape = Shape {
        gpus: 1,
        replicas: 10,
    };
    let pool = Pool::open(&stack, "forms", &[("forms-1".to_owned(), shape)]).await?;
    let client = stack.cluster.admin()?;
    let in_resources = pool.create("in-resources", &LIMITS).await?;
    let (limits, annotation) = stored(&in_resources)?;
    ensure!(limits["nvidia.com/gpumem"] == "1k", "{limits}");
    ensure!(annotation.is_none(), "{annotation:?}");
    pool.bound("in-resources").await?;
    let quotas: Api<ResourceQuota> = Api::namespaced(client.clone(), "forms");
    let quota = json!({"metadata": {"name": "team"},
        "spec": {"hard": {"requests.nvidia.com/gpumem": "2500"}}});
    let quota = serde_json::from_value(quota)?;
    quotas.create(&PostParams::default(), &quota).await?;
    let scheduler = stack.address(Kind::Scheduler);
    eventually(PATIENCE, "the quota in the ledger", || async {
        let labels = ["namespace=\"forms\""];
        let found = metric(scheduler, "aliquot_scheduler_quota_limit", &labels).await?;
        until!(found > 0.0, "{found}");
        Ok(Some(()))
    })
    .await?;

    let namespaces: Api<Namespace> = Api::all(client.clone());
    let label = json!({"metadata": {"labels": {"aliquot.dev/request-as": "annotation"}}});
    let label = Patch::Merge(label);
    namespaces
        .patch("forms", &PatchParams::default(), &label)
        .await?;
    let pods: Api<Pod> = Api::namespaced(client, "forms");
    let trial: Pod = serde_json::from_value(pool.pod("trial", &LIMITS))?;
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    eventually(PATIENCE, "the label at the API server", || async {
        let (_, annotation) = stored(&pods.create(&dry_run, &trial).await?)?;
        until!(annotation.is_some(), "no annotation");
        Ok(Some(()))
    })
    .await?;

    let annotated = pool.create("annotated", &LIMITS).await?;
    let (limits, annotation) = stored(&annotated)?;
    ensure!(limits == json!({"nvidia.com/gpu": "1"}), "{limits}");
    let expected = r#"{"v":1,"containers":{"main":{"memory":1000,"cores":10}},"priority":1}"#;
    ensure!(annotation.as_deref() == Some(expected), "{annotation:?}");
    let allocation = allocation(&pool.bound("annotated").await?)?;
    let grants = allocation.grants("main").context("main has a share")?;
    let amounts = (grants[0].memory.0, grants[0].cores.0);
    ensure!(amounts == (1000, 10), "{grants:?}");

    pool.create("refused", &LIMITS).await?;
    let why = "1 ResourceQuotaNotFit (namespace forms: requests.nvidia.com/gpumem used 2000, \
               asked 1000, limit 2500 of quota team)";
    pool.event("refused", why).await?;
    pool.close().await
}
