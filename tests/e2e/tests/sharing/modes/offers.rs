//! Every version of a partitioned node's capacity.

use aliquot_e2e::stack::{NODE, Stack};
use anyhow::{Context as _, Result};
use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{WatchEvent, WatchParams};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::mig::{LARGE, PATIENCE, SMALL};

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
