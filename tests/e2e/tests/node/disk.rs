//! What the node agent leaves on disk: only what living pods need.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use aliquot_cluster::wait::eventually;
use aliquot_e2e::stack::Stack;
use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;

use crate::running::Running;

/// From the end of the last pod to the end of its files.
const SOON: Duration = Duration::from_secs(15);

/// The names of the agent's files and folders.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OnDisk {
    specs: BTreeSet<String>,
    seats: BTreeSet<String>,
    accepted: BTreeSet<String>,
}

impl OnDisk {
    pub(crate) fn read(stack: &Stack) -> Result<Self> {
        Ok(Self {
            specs: names(&stack.cluster.cdi_dir())?,
            seats: names(&stack.agent_state().join("seats"))?,
            accepted: names(&stack.agent_state().join("accepted"))?,
        })
    }

    /// Waits until there is one share, seat and spec for each of these pods with
    /// one container, and nothing else.
    pub(crate) async fn wait(stack: &Stack, pods: &[&Running]) -> Result<()> {
        let accepted: BTreeSet<String> =
            pods.iter().map(|pod| format!("{}.json", pod.uid)).collect();
        let what = format!("the files of {} pods and no others", pods.len());
        eventually(SOON, &what, || async {
            let found = Self::read(stack)?;
            let paired = found.specs.iter().zip(&found.seats);
            let mut paired = paired.map(|(spec, seat)| spec.contains(seat));
            ensure!(
                found.accepted == accepted
                    && found.seats.len() == pods.len()
                    && found.specs.len() == pods.len()
                    && paired.all(|same| same),
                "{found:?}"
            );
            Ok(Some(()))
        })
        .await
    }
}

fn names(folder: &Path) -> Result<BTreeSet<String>> {
    let entries = std::fs::read_dir(folder);
    let entries = entries.with_context(|| format!("list {}", folder.display()))?;
    entries
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect()
}

/// CDI specs, seats and accepted shares go with their pods, and not before.
pub(crate) async fn collected(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    stack.cluster.namespace("garbage").await?;
    OnDisk::wait(stack, &[]).await?;
    let starts = ["a", "b", "c", "stays"].map(|name| Running::start(stack, "garbage", name, 1000));
    let mut pods = try_join_all(starts).await?;
    OnDisk::wait(stack, &pods.iter().collect::<Vec<_>>()).await?;
    let stays = pods.remove(3);

    try_join_all(pods.iter().map(|pod| pod.delete(stack))).await?;
    OnDisk::wait(stack, &[&stays]).await?;
    stays.exit(stack).await?;
    stays.back(stack).await?;
    stays.delete(stack).await?;
    OnDisk::wait(stack, &[]).await
}
