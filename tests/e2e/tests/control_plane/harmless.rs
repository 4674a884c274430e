//! Pods that request nothing of ours never meet the webhook, and neither do resizes of anything else.

use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_cluster::until;
use aliquot_cluster::wait::{PATIENCE, eventually, sleep};
use aliquot_e2e::figures::report;
use aliquot_e2e::http::metric;
use aliquot_e2e::pods::{container, pod, simple};
use aliquot_e2e::stack::{Kind, Stack};
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};

/// Every optional field absent, empty or strange; none requests a GPU.
const ODD: &str = include_str!("odd-pods.json");
/// Of the webhook's CA while it is away.
const LIFE: Duration = Duration::from_secs(6);
/// Longest wait for an unrelated pod: a call to a webhook that is down takes 5 s.
const AT_ONCE: Duration = Duration::from_secs(4);

pub(crate) async fn reviews(stack: &Stack) -> Result<f64> {
    let address = stack.address(Kind::Webhook);
    metric(address, "aliquot_webhook_reviews_total", &[]).await
}

/// No match condition fails on them, and none is reviewed.
pub(crate) async fn odd_pods(stack: Arc<Stack>) -> Result<()> {
    stack.cluster.namespace("odd").await?;
    let odd: Vec<Value> = serde_json::from_str(ODD)?;
    ensure!(odd.len() >= 40, "{} pods", odd.len());
    let before = reviews(&stack).await?;
    for mut pod in odd {
        pod["apiVersion"] = json!("v1");
        pod["kind"] = json!("Pod");
        pod["metadata"]["namespace"] = json!("odd");
        let refusal = stack.refusal(pod.clone()).await?;
        ensure!(refusal.is_none(), "{pod}: {refusal:?}");
    }
    let after = reviews(&stack).await?;
    ensure!(after <= before, "{before} reviews before, {after} after");

    let pods: Api<Pod> = Api::namespaced(stack.cluster.admin()?, "odd");
    for pod in pods.list(&ListParams::default()).await? {
        let text = serde_json::to_string(&pod)?;
        ensure!(
            !text.contains("aliquot") && !text.contains("nvidia.com"),
            "{text}"
        );
    }
    // The count does move: this pod is reviewed.
    let refusal = stack
        .refusal(simple("odd", "real", &[("gpu", "1")]))
        .await?;
    ensure!(refusal.is_none(), "{refusal:?}");
    ensure!(reviews(&stack).await? > before);
    let at_once = DeleteParams::default().grace_period(0);
    pods.delete_collection(&at_once, &ListParams::default())
        .await?;
    Ok(())
}

/// `failurePolicy: Fail` delays no other pod, also when the certificates that the API server knows
/// have ended.
pub(crate) async fn webhook_away(stack: Arc<Stack>) -> Result<()> {
    stack.cluster.namespace("away").await?;
    stack.terminate(Kind::Webhook).await?;
    let lifetimes = ["--certificate-lifetime", "3s", "--ca-lifetime", "6s"];
    stack.start_webhook(&lifetimes).await?;
    stack.kill(Kind::Webhook).await?;
    sleep(2 * LIFE).await;
    let start = Instant::now();
    let plain = stack.refusal(simple("away", "plain", &[])).await?;
    let took = start.elapsed();
    report("a plain pod created while the webhook is away", took);

    let mut with_env = container("main", &[]);
    with_env["env"] = json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]);
    let mut init = pod("away", "init", &[container("main", &[])]);
    init["spec"]["initContainers"] = json!([container("init", &[("gpumem", "1000")])]);
    let mut refusals = Vec::new();
    for waiting in [
        simple("away", "gpu", &[("gpu", "1")]),
        pod("away", "env", &[with_env]),
        init,
    ] {
        refusals.push(stack.refusal(waiting).await?);
    }
    // First of all back to what the next scenario expects.
    stack.start_webhook(&[]).await?;
    ensure!(plain.is_none(), "the plain pod: {plain:?}");
    ensure!(took < AT_ONCE, "{took:?}");
    for refusal in refusals {
        let refusal = refusal.context("a GPU pod was admitted without a review")?;
        ensure!(
            refusal.contains("failed calling webhook \"pods.aliquot.dev\""),
            "{refusal}"
        );
    }
    let refusal = stack
        .refusal(simple("away", "gpu", &[("gpu", "1")]))
        .await?;
    ensure!(refusal.is_none(), "the webhook is back: {refusal:?}");
    for name in ["plain", "gpu"] {
        stack.cluster.delete_pod("away", name).await?;
    }
    Ok(())
}

/// The API server asks the webhook before it refuses to resize a share itself, and about no other resize.
pub(crate) async fn resizes(stack: Arc<Stack>) -> Result<()> {
    stack.cluster.namespace("resized").await?;
    let share = simple("resized", "share", &[("gpu", "1"), ("gpumem", "3000")]);
    stack.cluster.create_pod(share).await?;
    let pods: Api<Pod> = Api::namespaced(stack.cluster.admin()?, "resized");
    let resize = async |resource: &str| -> Result<(u16, String)> {
        let main = json!({"name": "main", "resources": {"limits": {resource: "6000"}}});
        let patch = Patch::Strategic(json!({"spec": {"containers": [main]}}));
        let params = PatchParams::default();
        let resized = pods.patch_subresource("resize", "share", &params, &patch);
        match resized.await {
            Ok(_) => Ok((200, String::new())),
            Err(kube::Error::Api(status)) => Ok((status.code, status.message)),
            Err(error) => Err(error.into()),
        }
    };
    let command = "kubectl aliquot resize pod/share -n resized -c main";
    let code = eventually(PATIENCE, "the command to be named", || async {
        let (code, said) = resize("nvidia.com/gpumem").await?;
        // Kubernetes before 1.33 resizes no pod.
        until!(code == 404 || said.contains(command), "{code}: {said}");
        Ok(Some(code))
    })
    .await?;
    let before = reviews(&stack).await?;
    let (_, said) = resize("memory").await?;
    let after = reviews(&stack).await?;
    ensure!(
        code == 404 || after <= before && !said.contains("aliquot"),
        "{said}"
    );
    stack.cluster.delete_pod("resized", "share").await
}
