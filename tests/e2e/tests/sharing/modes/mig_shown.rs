//! What the node shows of its partitioned GPUs: every version of its capacity, its condition, and
//! what a program in a container lists.

use std::sync::Arc;

use aliquot_cluster::until;
use aliquot_cluster::wait::{OrNotYet as _, eventually};
use aliquot_core::Inventory;
use aliquot_core::inventory::INVENTORY;
use aliquot_core::mig::published::Mig;
use aliquot_e2e::clients::{nvml, with_nvml};
use aliquot_e2e::pods;
use aliquot_e2e::stack::{NODE, Stack};
use anyhow::{Context as _, Result, ensure};
use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{WatchEvent, WatchParams};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::mig::{LARGE, PATIENCE, SMALL, first, instances, plain};
use super::mps::wait_replicas;

/// What a version of the Node has allocatable of the small and of the large resource.
pub(crate) type Offer = (Option<String>, Option<String>);

/// Every version of the Node's status, as a client that watches sees them.
pub(crate) struct Offers(mpsc::UnboundedReceiver<Offer>, JoinHandle<()>);

impl Offers {
    pub(crate) async fn watch(stack: &Stack) -> Result<Self> {
        let nodes: Api<Node> = Api::all(stack.cluster.admin()?);
        let now = nodes.get(NODE).await?;
        let version = now.metadata.resource_version.clone();
        let version = version.context("a version")?;
        let field = format!("metadata.name={NODE}");
        let params = WatchParams::default().fields(&field).timeout(290);
        let stream = nodes.watch(&params, &version).await?;
        let (sender, receiver) = mpsc::unbounded_channel();
        let offer = |node: Node| {
            let all = node.status.unwrap_or_default().allocatable;
            let all = all.unwrap_or_default();
            let of = |name: &str| all.get(name).map(|quantity| quantity.0.clone());
            (of(SMALL), of(LARGE))
        };
        sender.send(offer(now))?;
        let task = tokio::spawn(async move {
            let mut stream = std::pin::pin!(stream);
            while let Ok(Some(event)) = stream.try_next().await {
                let WatchEvent::Modified(node) = event else {
                    continue;
                };
                if sender.send(offer(node)).is_err() {
                    return;
                }
            }
        });
        Ok(Self(receiver, task))
    }

    /// What was seen, each once after the other, until the small resource has no key.
    pub(crate) async fn until_gone(mut self, resource: &str) -> Result<Vec<Offer>> {
        let mut seen: Vec<Offer> = Vec::new();
        loop {
            let next = tokio::time::timeout(PATIENCE, self.0.recv()).await;
            let next = next.with_context(|| format!("{resource} to go: {seen:?}"))?;
            let next = next.context("the watch ended")?;
            if seen.last().is_none_or(|last| last.0 != next.0) {
                seen.push(next);
            }
            if seen.last().is_some_and(|last| last.0.is_none()) {
                self.1.abort();
                return Ok(seen);
            }
        }
    }
}

/// MIG-4: GPUs under one name with different layouts: nothing changes, and the node's condition
/// names the odd one.
pub(crate) async fn odd(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    let gpu = |index: u32, layout: &str| {
        format!(
            "    - {{select: {{index: {index}}}, mode: mig, strategy: single, layout: [{layout}]}}\n"
        )
    };
    let gpus = [
        gpu(0, "{profile: 2g.10gb, count: 3}"),
        gpu(1, "{profile: 1g.5gb, count: 7}"),
    ];
    stack.write_profiles(&format!(
        "apiVersion: aliquot.dev/v1alpha1\ndefault: here\nprofiles:\n  here:\n    gpus:\n{}    rest: vgpu\n",
        gpus.concat()
    ))?;
    let shown = stack.machine().show()?;
    let uuid = shown["gpus"][1]["uuid"].as_str().context("a uuid")?;
    let text = format!("{uuid}) into 7 x 1g.5gb, but the others into 3 x 2g.10gb");
    let nodes: Api<Node> = Api::all(stack.cluster.admin()?);
    eventually(PATIENCE, "the condition to name the GPU", || async {
        let status = nodes.get(NODE).await?.status.unwrap_or_default();
        let mut all = status.conditions.unwrap_or_default().into_iter();
        let found = all.find(|one| one.type_ == "AliquotProfile");
        let found = found.context("no such condition").or_not_yet()?;
        let message = found.message.unwrap_or_default();
        until!(
            found.status == "False" && message.contains(&text),
            "{message}"
        );
        Ok(Some(()))
    })
    .await?;
    ensure!(instances(stack)?.is_empty());
    plain(stack).await
}

/// MIG-8: NVIDIA's own client of Python lists in the container the allocated instance, with the
/// numbers that the node publishes, and nothing else of the GPU.
pub(crate) async fn listed(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    let space = "mig-listed";
    stack.cluster.namespace(space).await?;
    super::mps::give_driver(stack)?;
    stack.write_profiles(&first(
        "layout: [{profile: 3g.20gb}, {profile: 1g.5gb, count: 2}]",
    ))?;
    wait_replicas(stack, SMALL, Some("2")).await?;
    for name in ["one", "two"] {
        let pod = with_nvml(stack, space, name, &[("mig-1g.5gb", "1")])?;
        stack.cluster.create_pod(pod).await?;
        let pod = stack.cluster.wait_running(space, name).await?;
        let allocated = pods::allocation(&pod)?;
        let allocated = allocated.grants("main").context("a share")?[0]
            .gpu
            .to_string();
        let published = inventory(stack).await?;
        let device = published
            .gpu(&allocated.as_str().into())
            .context("the device")?;
        let part = device.mig.as_ref().and_then(Mig::fixed);
        let part = part.context("an instance")?;
        let seen = nvml(stack, space, name).await?;
        let gpus = seen["gpus"].as_array().context("GPUs")?;
        ensure!(
            gpus.len() == 1 && gpus[0]["uuid"] == part.parent.as_str(),
            "{seen}"
        );
        let one = json!({"uuid": allocated, "gpuInstance": part.gi, "computeInstance": part.ci});
        ensure!(gpus[0]["instances"] == json!([one]), "{seen}");
    }
    for name in ["one", "two"] {
        stack.cluster.delete_pod(space, name).await?;
    }
    plain(stack).await
}

async fn inventory(stack: &Stack) -> Result<Inventory> {
    let nodes: Api<Node> = Api::all(stack.cluster.admin()?);
    let annotations = nodes.get(NODE).await?.metadata.annotations;
    let annotations = annotations.context("annotations")?;
    let text = annotations.get(INVENTORY).context("the inventory")?;
    Ok(Inventory::decode(text)?)
}
