//! Kill -9 of the agent at every fail-point of a switch and of a container's start.

use std::sync::Arc;

use aliquot_core::inventory::Mode;
use aliquot_e2e::pods::{allocation, simple};
use aliquot_e2e::stack::{Kind, NodeOptions, Stack};
use anyhow::{Context as _, Result, ensure};

use super::world::{
    LEFT, PROFILES, RIGHT, USUAL, label, modes, wait_condition, wait_modes, wait_offered,
};
use super::{options, restart};

const SPACE: &str = "killed";
/// The fail-points of a change of a mode, in the order in which they are reached.
const SWITCHING: [&str; 7] = [
    "ChangeBeforeStore",
    "ChangeAfterStore",
    "ChangePublished",
    "BeforeLeave",
    "AfterLeave",
    "BeforeEnter",
    "AfterEnter",
];
/// Those of a container's start.
const STARTING: [&str; 6] = [
    "ShareBeforeStore",
    "ShareAfterStore",
    "NamesStored",
    "DirectoryWritten",
    "SpecWritten",
    "StartServed",
];

fn chaos() -> NodeOptions {
    NodeOptions {
        chaos: true,
        ..options(PROFILES)
    }
}

async fn with_fail_points(
    stack: &Stack,
    run: impl AsyncFnOnce(&Stack) -> Result<()>,
) -> Result<()> {
    stack.terminate(Kind::DevicePlugin).await?;
    restart(stack, &chaos()).await?;
    let outcome = run(stack).await;
    if outcome.is_ok() {
        stack.terminate(Kind::DevicePlugin).await?;
        restart(stack, &options(PROFILES)).await?;
        label(stack, None).await?;
    }
    outcome
}

async fn old_or_new(stack: &Stack, point: &str) -> Result<()> {
    let found = modes(stack).await?;
    let known = |(n, (mode, _)): (usize, &(Mode, bool))| *mode == LEFT[n] || *mode == RIGHT[n];
    let whole = found.len() == LEFT.len() && found.iter().enumerate().all(known);
    ensure!(whole, "{point}: {found:?}");
    Ok(())
}

pub(crate) async fn switching(stack: Arc<Stack>) -> Result<()> {
    with_fail_points(&stack, async |stack| {
        for point in SWITCHING {
            label(stack, Some("left")).await?;
            wait_modes(stack, &LEFT).await?;
            wait_condition(stack, "Applied", "profile left").await?;
            stack.kill_at(point)?;
            label(stack, Some("right")).await?;
            stack.killed().await.context(point)?;
            old_or_new(stack, point).await?;
            restart(stack, &chaos()).await?;
            old_or_new(stack, point).await?;
            wait_modes(stack, &RIGHT).await.context(point)?;
            wait_offered(stack, &[(USUAL, "24")]).await?;
        }
        Ok(())
    })
    .await
}

pub(crate) async fn starting(stack: Arc<Stack>) -> Result<()> {
    stack.cluster.namespace(SPACE).await?;
    label(&stack, Some("left")).await?;
    wait_modes(&stack, &LEFT).await?;
    with_fail_points(&stack, async |stack| {
        for point in STARTING {
            let name = point.to_lowercase();
            stack.kill_at(point)?;
            let limits = [("gpu", "1"), ("gpumem", "3000"), ("gpucores", "10")];
            let created = simple(SPACE, &name, &limits);
            stack.cluster.create_pod(created.clone()).await?;
            stack.killed().await.context(point)?;
            restart(stack, &chaos()).await?;
            let pod = stack.runs_or_is_made_again(created).await;
            let pod = pod.context(point)?;
            let allocation = allocation(&pod)?;
            let grant = &allocation.grants("main").context("a share")?[0];
            let shown = stack.cluster.exec(SPACE, &name, "main", &["env"]).await?;
            let shown = shown.success()?;
            for expected in [
                format!("ALIQUOT_VISIBLE_DEVICES={}", grant.gpu),
                format!("CUDA_DEVICE_MEMORY_LIMIT_0={}m", grant.memory.0),
            ] {
                let is_set = shown.lines().any(|line| line == expected);
                ensure!(is_set, "{point}: {shown}");
            }
            stack.ledger_agrees().await?;
            stack.cluster.delete_pod(SPACE, &name).await?;
        }
        Ok(())
    })
    .await
}
