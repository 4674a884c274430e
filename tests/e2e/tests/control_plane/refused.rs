//! Bad input in the form in which the real API server hands it on, and the webhook's words as it
//! answers them.

use std::sync::Arc;

use aliquot_e2e::pods::simple;
use aliquot_e2e::stack::Stack;
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};

const NAMESPACE: &str = "refused";
const MIB: &str = "expected: a whole number of MiB, 1 to 1048576";
const DENIED: &str = "admission webhook \"pods.aliquot.dev\" denied the request";

/// Memory as users write it, and what is refused: the text has the API server's own form.
fn quantities() -> [(Value, String); 4] {
    let suffix = "has a binary suffix";
    [
        (
            json!("0.5Gi"),
            format!("\"512Mi\" {suffix}; {MIB} (write 512, the unit is MiB)"),
        ),
        (json!(-3000), format!("\"-3k\" is negative; {MIB}")),
        (
            json!(1500.5),
            format!("\"1500500m\" is not a whole number; {MIB}"),
        ),
        (json!("1e7"), format!("\"10e6\" is out of range; {MIB}")),
    ]
}

/// Each with field, value and expected form; none is created.
pub(crate) async fn pods(stack: Arc<Stack>) -> Result<()> {
    stack.cluster.namespace(NAMESPACE).await?;
    for (written, problem) in quantities() {
        let mut pod = simple(NAMESPACE, "bad", &[]);
        let limits = json!({"nvidia.com/gpu": 1, "nvidia.com/gpumem": written});
        pod["spec"]["containers"][0]["resources"] = json!({"limits": limits});
        let field = "spec.containers[0].resources.limits[\"nvidia.com/gpumem\"]";
        let expected = format!("{DENIED}: {field}: {problem}");
        let found = stack.refusal(pod).await?;
        ensure!(
            found.as_deref() == Some(&expected),
            "expected {expected}, found {found:?}"
        );
    }
    let pods: Api<Pod> = Api::namespaced(stack.cluster.admin()?, NAMESPACE);
    let left = pods.list(&ListParams::default()).await?.items.len();
    ensure!(left == 0, "{left} pods were created");
    ephemeral_container(&stack, &pods).await
}

/// The other door, UPDATE of pods/ephemeralcontainers.
async fn ephemeral_container(stack: &Stack, pods: &Api<Pod>) -> Result<()> {
    let shared = simple(NAMESPACE, "shared", &[("gpu", "1")]);
    stack.cluster.create_pod(shared).await?;
    let capabilities = json!({"capabilities": {"add": ["SYS_PTRACE"]}});
    let debug = json!({"name": "debug", "image": "i", "securityContext": capabilities});
    let patch = Patch::Strategic(json!({"spec": {"ephemeralContainers": [debug]}}));
    let params = PatchParams::default();
    let added = pods
        .patch_ephemeral_containers("shared", &params, &patch)
        .await;
    let refusal = added.err().context("it was admitted")?.to_string();
    let field = "spec.ephemeralContainers[0].securityContext.capabilities.add[0]: \"SYS_PTRACE\"";
    ensure!(refusal.contains(&format!("{DENIED}: {field}")), "{refusal}");
    stack.cluster.delete_pod(NAMESPACE, "shared").await
}
