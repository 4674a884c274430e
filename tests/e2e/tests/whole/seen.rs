//! What a running container with a share has, read in the container itself.
//!
//! Fed by: the scenarios beside this file. Must not: change the pod.

use std::time::Duration;

use aliquot_cluster::wait::eventually;
use aliquot_e2e::pods::{allocation, simple};
use aliquot_e2e::stack::Stack;
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;

const PATIENCE: Duration = Duration::from_mins(3);
const TOLD: [&str; 3] = [
    "NVIDIA_VISIBLE_DEVICES",
    "CUDA_DEVICE_MEMORY_LIMIT_0",
    "CUDA_DEVICE_SM_LIMIT",
];

/// A container, and its share.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Its id at the runtime.
    pub(crate) container: String,
    pub(crate) restarts: i32,
    pub(crate) share: Vec<String>,
}

/// A pod with this many MiB and 20 % of one card.
pub(crate) async fn create(stack: &Stack, namespace: &str, name: &str, memory: &str) -> Result<()> {
    let limits = [("gpu", "1"), ("gpumem", memory), ("gpucores", "20")];
    let pod = simple(namespace, name, &limits);
    stack.cluster.create_pod(pod).await.map(drop)
}

fn status(pod: &Pod) -> Result<(String, i32)> {
    let statuses = pod
        .status
        .as_ref()
        .and_then(|s| s.container_statuses.as_ref());
    let main = statuses
        .and_then(|all| all.first())
        .context("no status of main")?;
    let runs = main
        .state
        .as_ref()
        .is_some_and(|state| state.running.is_some());
    ensure!(runs && main.ready, "{main:?}");
    let id = main.container_id.clone().context("no container")?;
    Ok((id, main.restart_count))
}

/// Waits until the pod runs, started again this often, and sees what its allocation says.
pub(crate) async fn runs(
    stack: &Stack,
    (namespace, name): (&str, &str),
    restarts: i32,
) -> Result<Seen> {
    let what = format!("{namespace}/{name} to run with its share, restarted {restarts} times");
    eventually(PATIENCE, &what, || async {
        let asks = ["get", "pod", "-n", namespace, name, "-o", "json"];
        let text = stack.cluster.kubectl(&asks).await?.success()?;
        let pod: Pod = serde_json::from_str(&text)?;
        let (container, count) = status(&pod)?;
        ensure!(count == restarts, "restarted {count} times");
        let environment = stack.environment(namespace, name, "main").await?;
        let of = |name: &&str| environment.get(*name).cloned().unwrap_or_default();
        let share: Vec<String> = TOLD.iter().map(of).collect();
        let allocation = allocation(&pod)?;
        let grant = allocation.grants("main").context("no share of main")?;
        let grant = grant.first().context("an empty share")?;
        let granted = [
            grant.gpu.to_string(),
            format!("{}m", grant.memory.0),
            grant.cores.0.to_string(),
        ];
        ensure!(share == granted, "{share:?}, granted {granted:?}");
        Ok(Some(Seen {
            container,
            restarts,
            share,
        }))
    })
    .await
}
