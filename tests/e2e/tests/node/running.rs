//! A running pod whose container has printed its share, and what became of it.
//!
//! What a container prints is read from the kubelet's log files, whatever else is down.

use std::collections::BTreeMap;
use std::path::PathBuf;

use aliquot_cluster::not_yet;
use aliquot_cluster::wait::{OrNotYet as _, eventually, give_up};
use aliquot_e2e::pods::{WAIT, allocation, parse_environment, pod, with_command};
use aliquot_e2e::stack::Stack;
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use serde_json::Value;

pub(crate) use aliquot_cluster::wait::PATIENCE;

/// What a container prints first: its environment, then its limits page.
const PRINT: &str = "env; echo PAGE; od -v -An -tx1 /.aliquot/limits; echo END";
/// Variables that belong to a share.
const OURS: [&str; 5] = ["ALIQUOT_", "CUDA_", "NVIDIA_", "GPU_", "ACTIVE_"];

/// What a container sees of its share.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PrintedShare {
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) page: Vec<u8>,
}

/// A pod with one container, `main`, that has started once.
pub(crate) struct Running {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) share: PrintedShare,
    container: String,
}

impl Running {
    /// Creates a pod with this many MiB and 5 % of one GPU, and waits until it
    /// runs with what its allocation says.
    pub(crate) async fn start(
        stack: &Stack,
        namespace: &str,
        name: &str,
        memory: u64,
    ) -> Result<Self> {
        Self::create(stack, namespace, name, memory).await?;
        Self::created(stack, namespace, name).await
    }

    /// Only creates the pod.
    pub(crate) async fn create(
        stack: &Stack,
        namespace: &str,
        name: &str,
        memory: u64,
    ) -> Result<()> {
        let pod = Self::pod(namespace, name, memory);
        stack.cluster.create_pod(pod).await.map(drop)
    }

    /// The pod of [`Running::create`].
    pub(crate) fn pod(namespace: &str, name: &str, memory: u64) -> Value {
        let memory = memory.to_string();
        let limits = [("gpu", "1"), ("gpumem", &*memory), ("gpucores", "5")];
        let script = format!("{PRINT}; {WAIT}");
        pod(namespace, name, &[with_command("main", &limits, &script)])
    }

    /// Waits until a pod made by [`Running::create`] runs with what its allocation says.
    pub(crate) async fn created(stack: &Stack, namespace: &str, name: &str) -> Result<Self> {
        let pod = stack.cluster.wait_running(namespace, name).await?;
        let uid = pod.metadata.uid.clone().context("a uid")?;
        let share = printed(stack, namespace, name, &uid, 0).await?;
        let allocation = allocation(&pod)?;
        let grant = &allocation.grants("main").context("main has a share")?[0];
        let memory = share.environment.get("CUDA_DEVICE_MEMORY_LIMIT_0");
        ensure!(
            memory == Some(&format!("{}m", grant.memory.0)),
            "{name}: {memory:?}, granted {grant:?}"
        );
        ensure!(share.gpu() == grant.gpu.as_str(), "{name}: {share:?}");
        // Where the page's table puts the first GPU's memory limit.
        let limit = share.page.get(64 + 40..64 + 48).context("a page")?;
        ensure!(
            share.page.len() == 4096 && limit == grant.memory.bytes().to_le_bytes(),
            "{name}: the page has {} bytes and the limit {limit:?}",
            share.page.len()
        );
        let status = main_status(&pod).context("main has a status")?;
        ensure!(status.restart_count == 0, "{name}: {status:?}");
        Ok(Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid,
            share,
            container: status.container_id.clone().context("a container id")?,
        })
    }

    /// The container is the one that was started first, and runs.
    pub(crate) async fn untouched(&self, stack: &Stack) -> Result<()> {
        self.runs(stack, 0).await
    }

    /// Ends the container's first process, without kubelet and API server.
    pub(crate) async fn exit(&self, stack: &Stack) -> Result<()> {
        let sent = stack.cluster.signal_container(&self.container, "SIGTERM");
        sent.await
    }

    /// The container started once more and sees the same share.
    pub(crate) async fn back(&self, stack: &Stack) -> Result<()> {
        let (namespace, name) = (&self.namespace, &self.name);
        let again = printed(stack, namespace, name, &self.uid, 1).await?;
        ensure!(
            again == self.share,
            "{name} had {:?} and now has {:?}",
            self.share.environment,
            again.environment
        );
        self.runs(stack, 1).await
    }

    /// Waits until the API server shows the container running after this many restarts.
    async fn runs(&self, stack: &Stack, restarts: i32) -> Result<()> {
        let what = format!("{} to be seen running, restarts: {restarts}", self.name);
        let (namespace, name) = (&self.namespace, &self.name);
        let pod = stack.cluster.wait_pod(namespace, name, &what, |pod| {
            let Some(status) = main_status(pod) else {
                not_yet!("no status of main");
            };
            let is_first = status.container_id.as_ref() == Some(&self.container);
            if status.restart_count > restarts || restarts == 0 && !is_first {
                return Err(give_up(format!("{status:?}")));
            }
            let is_running = status.state.as_ref().is_some_and(|s| s.running.is_some());
            let is_expected = status.restart_count == restarts && is_first == (restarts == 0);
            Ok(is_running && is_expected)
        });
        pod.await.map(drop)
    }

    /// Waits until the container is down and the kubelet's reason contains `text`.
    pub(crate) async fn wait_blocked(&self, stack: &Stack, text: &str) -> Result<()> {
        wait_blocked(stack, &self.namespace, &self.name, text).await
    }

    pub(crate) async fn delete(&self, stack: &Stack) -> Result<()> {
        stack.cluster.delete_pod(&self.namespace, &self.name).await
    }
}

impl PrintedShare {
    pub(crate) fn gpu(&self) -> &str {
        self.environment
            .get("ALIQUOT_VISIBLE_DEVICES")
            .map_or("", String::as_str)
    }
}

/// Waits until the container `main` waits and the kubelet's reason contains `text`.
pub(crate) async fn wait_blocked(
    stack: &Stack,
    namespace: &str,
    name: &str,
    text: &str,
) -> Result<()> {
    let what = format!("main of {name} to wait because of {text:?}");
    let pod = stack.cluster.wait_pod(namespace, name, &what, |pod| {
        let state = main_status(pod).and_then(|status| status.state.as_ref());
        let waiting = state.and_then(|state| state.waiting.as_ref());
        let message = waiting.and_then(|w| w.message.as_deref());
        Ok(message.is_some_and(|message| message.contains(text)))
    });
    pod.await.map(drop)
}

pub(crate) fn main_status(pod: &Pod) -> Option<&ContainerStatus> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    statuses.iter().find(|status| status.name == "main")
}

/// What the container's attempt printed, from the kubelet's log file.
async fn printed(
    stack: &Stack,
    namespace: &str,
    name: &str,
    uid: &str,
    attempt: u32,
) -> Result<PrintedShare> {
    let file = format!("pods/{namespace}_{name}_{uid}/main/{attempt}.log");
    let file: PathBuf = stack.cluster.log_dir().join(file);
    let what = format!("start {attempt} of {namespace}/{name} to print its share");
    eventually(PATIENCE, &what, || async {
        let text = std::fs::read_to_string(&file).or_not_yet()?;
        // A line is: time, stream, `F` for a full line, text.
        let lines = text.lines().filter_map(|line| line.splitn(4, ' ').nth(3));
        let lines: Vec<&str> = lines.collect();
        if !lines.contains(&"END") {
            return Ok(None);
        }
        let mut parts = lines.split(|line| ["PAGE", "END"].contains(line));
        let mut environment = parse_environment(&parts.next().unwrap_or_default().join("\n"));
        environment.retain(|key, _| OURS.iter().any(|prefix| key.starts_with(prefix)));
        let bytes = parts.next().unwrap_or_default().iter();
        let bytes = bytes.flat_map(|line| line.split_whitespace());
        let page: Result<Vec<u8>, _> = bytes.map(|byte| u8::from_str_radix(byte, 16)).collect();
        let page = page.map_err(|_| give_up(format!("no page in {text}")))?;
        Ok(Some(PrintedShare { environment, page }))
    })
    .await
}
