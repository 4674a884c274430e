//! What a running container with a share has, read in the container itself.

use std::time::Duration;

use aliquot_cluster::wait::{OrNotYet as _, eventually};
use aliquot_e2e::pods::allocation;
use aliquot_e2e::stack::Stack;
use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use crate::workloads::{applied, get, workload};

const PATIENCE: Duration = Duration::from_mins(3);
const VARIABLES: [&str; 3] = [
    "ALIQUOT_VISIBLE_DEVICES",
    "CUDA_DEVICE_MEMORY_LIMIT_0",
    "CUDA_DEVICE_SM_LIMIT",
];

/// Reason of a pod that the kubelet failed because, when it took the pod up again after its
/// containers had ended, no plugin was registered yet. The pod's controller makes another.
const TOO_EARLY: &str = "UnexpectedAdmissionError";

/// A container, and its share.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RunningContainer {
    /// Name of its pod.
    pub(crate) pod: String,
    /// Its id at the runtime.
    pub(crate) container: String,
    pub(crate) restarts: i32,
    pub(crate) share: Vec<String>,
}

/// A Deployment of one pod with this many MiB and 20 % of one GPU.
pub(crate) async fn create(stack: &Stack, namespace: &str, name: &str, memory: u32) -> Result<()> {
    let limits =
        json!({"nvidia.com/gpu": 1, "nvidia.com/gpumem": memory, "nvidia.com/gpucores": 20});
    let deployment = workload(namespace, "Deployment", name, &limits);
    applied(stack, &format!("{namespace}-{name}"), &[deployment]).await
}

/// The Deployment's one pod that is not over.
async fn pod_of(stack: &Stack, namespace: &str, name: &str) -> Result<Pod> {
    let pods = get(stack, namespace, "pods").await?;
    let pods: Vec<Pod> = serde_json::from_value(pods["items"].clone())?;
    let mut living = Vec::new();
    for pod in pods {
        let labels = pod.metadata.labels.as_ref();
        if labels
            .and_then(|all| all.get("app"))
            .is_none_or(|app| app != name)
        {
            continue;
        }
        let status = pod.status.clone().unwrap_or_default();
        if status.phase.as_deref() != Some("Failed") {
            living.push(pod);
        } else if status.reason.as_deref() != Some(TOO_EARLY) {
            bail!("{name} failed: {status:?}");
        }
    }
    ensure!(living.len() == 1, "{} pods of {name}", living.len());
    living.pop().context("one")
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

/// Waits until a matching pod of the Deployment runs, with what its allocation says.
pub(crate) async fn runs(
    stack: &Stack,
    (namespace, name): (&str, &str),
    right: impl Fn(&RunningContainer) -> bool,
) -> Result<RunningContainer> {
    let right = &right;
    let what = format!("a pod of {namespace}/{name} to run with its share");
    // All of it may be away while the cluster comes back.
    let seen = async || {
        let pod = pod_of(stack, namespace, name).await?;
        let (container, restarts) = status(&pod)?;
        let pod_name = pod.metadata.name.clone().context("a name")?;
        let environment = stack.environment(namespace, &pod_name, "main").await?;
        let of = |name: &&str| environment.get(*name).cloned().unwrap_or_default();
        let share: Vec<String> = VARIABLES.iter().map(of).collect();
        let allocation = allocation(&pod)?;
        let grant = allocation.grants("main").context("no share of main")?;
        let grant = grant.first().context("an empty share")?;
        let granted = [
            grant.gpu.to_string(),
            format!("{}m", grant.memory.0),
            grant.cores.0.to_string(),
        ];
        ensure!(share == granted, "{share:?}, granted {granted:?}");
        let seen = RunningContainer {
            pod: pod_name,
            container,
            restarts,
            share,
        };
        ensure!(right(&seen), "{seen:?}");
        Ok::<_, anyhow::Error>(seen)
    };
    eventually(PATIENCE, &what, || async {
        seen().await.or_not_yet().map(Some)
    })
    .await
}
