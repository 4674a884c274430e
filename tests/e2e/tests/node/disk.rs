//! What the node agent leaves on disk: only what running pods need.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use aliquot_cluster::until;
use aliquot_cluster::wait::{PATIENCE, eventually};
use aliquot_e2e::stack::{Kind, NodeOptions, Stack};
use aliquot_node_state::state::StateDirectory;
use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;

use crate::running::Running;

/// The names of the agent's files and directories.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OnDisk {
    specs: BTreeSet<String>,
    directories: BTreeSet<String>,
    accepted: BTreeSet<String>,
}

impl OnDisk {
    pub(crate) fn read(stack: &Stack) -> Result<Self> {
        let state = stack.agent_state();
        let state = StateDirectory(&state);
        Ok(Self {
            specs: names(&stack.cluster.cdi_dir())?,
            directories: names(&state.container_directories())?,
            accepted: names(&state.accepted())?,
        })
    }

    /// Everything here was there `before`. Less may be: files of pods that ended earlier are
    /// collected meanwhile.
    pub(crate) fn adds_nothing_to(&self, before: &Self) -> bool {
        self.specs.is_subset(&before.specs)
            && self.directories.is_subset(&before.directories)
            && self.accepted.is_subset(&before.accepted)
    }

    /// Waits until there is one allocation, container directory and CDI spec for each of these pods
    /// with one container, and nothing else.
    pub(crate) async fn wait(stack: &Stack, pods: &[&Running]) -> Result<()> {
        let accepted: BTreeSet<String> =
            pods.iter().map(|pod| format!("{}.json", pod.uid)).collect();
        let what = format!("the files of {} pods and no others", pods.len());
        eventually(PATIENCE, &what, || async {
            let found = Self::read(stack)?;
            let paired = found.specs.iter().zip(&found.directories);
            let mut paired = paired.map(|(spec, name)| spec.contains(name));
            until!(
                found.accepted == accepted
                    && found.directories.len() == pods.len()
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

/// CDI specs, container directories and accepted allocations go with their pods, and not before.
/// The kubelet (1.37) retains an ended pod in its checkpoint until it admits the next one with a
/// device, and an entry there retains the files: so each check follows a start.
pub(crate) async fn collected(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    stack.cluster.namespace("garbage").await?;
    let stays = Running::start(stack, "garbage", "stays", 1000).await?;
    OnDisk::wait(stack, &[&stays]).await?;
    let starts = ["a", "b", "c"].map(|name| Running::start(stack, "garbage", name, 1000));
    let [a, b, c]: [Running; 3] = try_join_all(starts)
        .await?
        .try_into()
        .ok()
        .context("three")?;
    OnDisk::wait(stack, &[&stays, &a, &b, &c]).await?;

    let ended = [&a, &b, &c].map(|pod| pod.delete(stack));
    try_join_all(ended).await?;
    let next = Running::start(stack, "garbage", "next", 1000).await?;
    OnDisk::wait(stack, &[&stays, &next]).await?;

    // Neither its end nor its start takes anything away.
    let before = OnDisk::read(stack)?;
    stack.terminate(Kind::DevicePlugin).await?;
    ensure!(OnDisk::read(stack)? == before, "taken at the end");
    stack.start_device_plugin(&NodeOptions::default()).await?;
    ensure!(OnDisk::read(stack)? == before, "taken at the start");
    stays.exit(stack).await?;
    stays.back(stack).await?;
    next.untouched(stack).await?;
    try_join_all([&stays, &next].map(|pod| pod.delete(stack))).await?;
    Ok(())
}
