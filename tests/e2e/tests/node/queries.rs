//! `kubectl aliquot` for a plain user: the scheduler runs in a pod, reached through the API server.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use aliquot_cluster::until;
use aliquot_cluster::wait::{OrNotYet as _, eventually};
use aliquot_e2e::http;
use aliquot_e2e::pods::simple;
use aliquot_e2e::stack::{Kind, NAMESPACE as SYSTEM, NODE, Stack};
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::running::{PATIENCE, Running};

const NAMESPACE: &str = "asked";
const SCHEDULER: &str = "aliquot-scheduler-0";
/// What one pod has allocated, and what another requests in vain.
const ALLOCATED: u64 = 20_000;
const TOO_MUCH: u64 = 90_000;

/// On a living cluster, through `pods/proxy`.
pub(crate) async fn in_its_pod(stack: Arc<Stack>) -> Result<()> {
    stack.cluster.namespace(NAMESPACE).await?;
    stack.terminate(Kind::Scheduler).await?;
    let outcome = match start(&stack).await {
        Ok(()) => Box::pin(asked(&stack)).await,
        Err(error) => Err(error),
    };
    let ended = stack.cluster.delete_pod(SYSTEM, SCHEDULER).await;
    stack.start_scheduler(&[]).await?;
    outcome.and(ended)
}

/// The scheduler in a pod on the node's network, where kube-scheduler finds it as
/// before. Its files are those of the machine.
async fn start(stack: &Stack) -> Result<()> {
    let program = stack.program(Kind::Scheduler);
    let kubeconfig = stack.kubeconfig(Kind::Scheduler).await?;
    let port = stack.address(Kind::Scheduler).port();
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let listen = format!("0.0.0.0:{port}");
    let pod = json!({
        "metadata": {
            "namespace": SYSTEM,
            "name": SCHEDULER,
            "labels": {
                "app.kubernetes.io/part-of": "aliquot",
                "app.kubernetes.io/component": "scheduler",
            },
        },
        "spec": {
            "hostNetwork": true,
            "terminationGracePeriodSeconds": 5,
            "volumes": [{"name": "machine", "hostPath": {"path": "/"}}],
            "containers": [{
                "name": "aliquot-scheduler",
                "image": "localhost/busybox:1",
                "command": ["chroot", "/machine", text(&program), "--listen", listen,
                    "--kubeconfig", text(&kubeconfig)],
                "volumeMounts": [{"name": "machine", "mountPath": "/machine"}],
            }],
        },
    });
    stack.cluster.create_pod(pod).await?;
    stack.cluster.wait_running(SYSTEM, SCHEDULER).await?;
    eventually(PATIENCE, "the scheduler in its pod to be ready", || async {
        let address = stack.address(Kind::Scheduler);
        http::get(address, "/readyz").await.or_not_yet().map(Some)
    })
    .await
    .map(drop)
}

async fn asked(stack: &Stack) -> Result<()> {
    let holder = Running::start(stack, NAMESPACE, "holds", ALLOCATED).await?;
    let memory = TOO_MUCH.to_string();
    let limits = [("gpu", "1"), ("gpumem", &*memory)];
    let waiting = simple(NAMESPACE, "waits", &limits);
    stack.cluster.create_pod(waiting).await?;
    let user = User {
        stack,
        kubeconfig: user(stack).await?,
    };

    // Why a pod waits: the refusal of the scheduler that answers.
    let explain = ["explain", "waits", "-n", NAMESPACE, "-o", "json"];
    let answer = eventually(PATIENCE, "the pod to be refused", || async {
        let answer = user.json(&explain).await?;
        until!(answer["refused"].is_object(), "{answer}");
        Ok(Some(answer))
    })
    .await?;
    ensure!(
        answer["leads"] == true && answer["fitting"] == 0,
        "{answer}"
    );
    let node = &answer["nodes"][0];
    ensure!(node["node"] == NODE && node["offered"] == true, "{answer}");
    for gpu in node["gpus"].as_array().context("GPUs")? {
        ensure!(gpu["answer"] == "CardInsufficientMemory", "{answer}");
    }

    // Everything, from the ledger and not computed from objects.
    let answer = user.json(&["top", "-o", "json"]).await?;
    ensure!(answer["leads"] == true, "{answer}");
    let gpus = answer["nodes"][0]["gpus"].as_array().context("GPUs")?;
    let promised = gpus.iter().filter_map(|gpu| gpu["used"]["memory"].as_u64());
    ensure!(
        gpus.len() == 2 && promised.sum::<u64>() == ALLOCATED,
        "{answer}"
    );

    stack.cluster.delete_pod(NAMESPACE, "waits").await?;
    holder.delete(stack).await
}

/// A user with the rights that docs/guides/why-is-my-pod-pending.md names, and no more: those to ask
/// the scheduler, and to see the pods of the own namespace.
async fn user(stack: &Stack) -> Result<PathBuf> {
    let accounts: Api<ServiceAccount> = Api::namespaced(stack.cluster.admin()?, NAMESPACE);
    let account = serde_json::from_value(json!({"metadata": {"name": "user"}}))?;
    accounts.create(&PostParams::default(), &account).await?;
    for args in [
        "create rolebinding aliquot-user -n aliquot-system --role=aliquot-user --serviceaccount=asked:user",
        "create role pods -n asked --verb=list --resource=pods",
        "create rolebinding pods -n asked --role=pods --serviceaccount=asked:user",
    ] {
        let args: Vec<&str> = args.split(' ').collect();
        stack.cluster.kubectl(&args).await?.success()?;
    }
    stack.cluster.kubeconfig_for(NAMESPACE, "user", None).await
}

/// The user who runs the command.
struct User<'a> {
    stack: &'a Stack,
    kubeconfig: PathBuf,
}

impl User<'_> {
    /// What `kubectl aliquot` prints, by the real kubectl, which finds it in the path.
    async fn json(&self, args: &[&str]) -> Result<Value> {
        let plugins = self.stack.program(Kind::Scheduler);
        let plugins = plugins.parent().context("a directory")?;
        let port = self.stack.address(Kind::Scheduler).port().to_string();
        let mut command = Command::new(self.stack.cluster.binaries().join("kubebox"));
        command
            .args(["kubectl", "aliquot"])
            .args(args)
            .args(["--scheduler-port", &port])
            .env("KUBECONFIG", &self.kubeconfig)
            .env("PATH", plugins)
            .stdin(std::process::Stdio::null())
            .kill_on_drop(true);
        let output = command.output();
        let output = tokio::time::timeout(PATIENCE, output).await??;
        let is_quiet = output.status.success() && output.stderr.is_empty();
        ensure!(is_quiet, "{output:?}");
        Ok(serde_json::from_slice(&output.stdout)?)
    }
}
