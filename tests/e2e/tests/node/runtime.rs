//! Problems of the container runtime are reported, with the configuration of the real containerd.

use std::path::PathBuf;
use std::sync::Arc;

use aliquot_cluster::until;
use aliquot_cluster::wait::{OrNotYet as _, PATIENCE, eventually};
use aliquot_e2e::clients::nvidia_spec;
use aliquot_e2e::pods::simple;
use aliquot_e2e::stack::{Kind, NODE, NodeOptions, Stack};
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;

const CLASS: &str = "nvidia-e2e";
const SPACE: &str = "runtime";

pub(crate) async fn lacks(stack: Arc<Stack>) -> Result<()> {
    let outcome = check(&stack).await;
    let classes = Api::<RuntimeClass>::all(stack.cluster.admin()?);
    let _none = classes.delete(CLASS, &DeleteParams::default()).await;
    let _none = std::fs::remove_file(spec(&stack));
    stack.terminate(Kind::DevicePlugin).await?;
    stack.start_device_plugin(&NodeOptions::default()).await?;
    outcome
}

fn spec(stack: &Stack) -> PathBuf {
    stack.cluster.cdi_dir().join("nvidia.json")
}

/// Restarts the agent with this configuration of the runtime.
async fn restart(stack: &Stack, runtime: Option<PathBuf>) -> Result<()> {
    stack.terminate(Kind::DevicePlugin).await?;
    let options = NodeOptions {
        flags: &[
            "--runtime-class",
            CLASS,
            "--nvidia-cdi-dirs",
            "/nonexistent",
        ],
        runtime,
        ..NodeOptions::default()
    };
    stack.start_device_plugin(&options).await
}

/// Waits until the node's condition has this reason and a message with all of these and none of
/// those parts.
pub(crate) async fn wait_condition(
    stack: &Stack,
    reason: &str,
    parts: &[&str],
    not: &[&str],
) -> Result<()> {
    let nodes = Api::<Node>::all(stack.cluster.admin()?);
    eventually(
        PATIENCE,
        &format!("the node's condition to be {reason}"),
        || async {
            let status = nodes.get(NODE).await?.status.unwrap_or_default();
            let mut all = status.conditions.unwrap_or_default().into_iter();
            let found = all.find(|c| c.type_ == "AliquotRuntimeIncomplete");
            let found = found.context("no such condition").or_not_yet()?;
            let message = found.message.clone().unwrap_or_default();
            let right = found.reason.as_deref() == Some(reason)
                && parts.iter().all(|part| message.contains(part))
                && !not.iter().any(|part| message.contains(part));
            until!(right, "{found:?}");
            Ok(Some(()))
        },
    )
    .await
}

async fn check(stack: &Stack) -> Result<()> {
    restart(stack, None).await?;
    let missing = [
        "no CDI spec for nvidia.com/gpu",
        "no RuntimeClass nvidia-e2e",
    ];
    let right = ["CDI is disabled", "cdi_spec_dirs"];
    wait_condition(stack, "ToolkitMissing", &missing, &right).await?;
    eventually(PATIENCE, "an event on the node", || async {
        let events = stack.cluster.events("default", "Node", NODE).await?;
        let notes = events.iter().filter_map(|event| event.message.as_deref());
        let matching = notes.filter(|note| note.contains("no RuntimeClass nvidia-e2e"));
        until!(matching.count() > 0, "{events:?}");
        Ok(Some(()))
    })
    .await?;

    let mut text = nvidia_spec(stack)?;
    text["containerEdits"]["env"] = json!(["FROM_THE_TOOLKIT=1"]);
    std::fs::write(spec(stack), text.to_string())?;
    let class = json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
        "metadata": {"name": CLASS}, "handler": "runc"});
    let classes = Api::<RuntimeClass>::all(stack.cluster.admin()?);
    let class = serde_json::from_value(class)?;
    classes.create(&PostParams::default(), &class).await?;
    restart(stack, None).await?;
    wait_condition(stack, "RuntimeComplete", &[], &[]).await?;

    // As if CDI were off: nothing starts that would be without its GPU.
    let real = std::fs::read_to_string(stack.cluster.containerd_config())?;
    let off = real.replace("cdi_spec_dirs", "enable_cdi = false\ncdi_spec_dirs");
    ensure!(off != real, "{real}");
    let path = stack.machine().state().with_file_name("cdi-off.toml");
    std::fs::write(&path, off)?;
    restart(stack, Some(path)).await?;
    wait_condition(stack, "CdiOff", &["enable_cdi = true"], &[]).await?;
    stack.cluster.namespace(SPACE).await?;
    let pod = simple(SPACE, "waits", &[("gpu", "1")]);
    stack.cluster.create_pod(pod).await?;
    eventually(PATIENCE, "an event about the pod", || async {
        let events = stack.event_texts(SPACE, "waits").await?;
        let words = "cdi-off.toml: set enable_cdi = true there and restart containerd";
        let reported = events.iter().any(|event| event.contains(words));
        until!(reported, "{events:?}");
        Ok(Some(()))
    })
    .await?;
    restart(stack, None).await?;
    stack.cluster.wait_running(SPACE, "waits").await?;
    let environment = stack.environment(SPACE, "waits", "main").await?;
    let own = environment.contains_key("ALIQUOT_VISIBLE_DEVICES");
    ensure!(
        own && environment.contains_key("FROM_THE_TOOLKIT"),
        "{environment:?}"
    );
    stack.cluster.delete_pod(SPACE, "waits").await
}
