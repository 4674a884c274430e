//! `kubectl aliquot doctor` and `preflight` against a real API server, scheduler and webhook.

use std::sync::Arc;

use aliquot_cluster::wait::PATIENCE;
use aliquot_e2e::pool::{Pool, Shape};
use aliquot_e2e::stack::{Kind, Stack};
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::{Value, json};
use tokio::process::Command;

/// Exit code and answer of `doctor`.
async fn doctor(stack: &Stack, args: &[&str]) -> Result<(Option<i32>, Value)> {
    report(stack, &[&["doctor"], args].concat()).await
}

/// Exit code and answer of a command that reports findings.
async fn report(stack: &Stack, args: &[&str]) -> Result<(Option<i32>, Value)> {
    let program = stack
        .program(Kind::Scheduler)
        .with_file_name("kubectl-aliquot");
    let mut command = Command::new(program);
    command
        .args(args)
        .args(["-o", "json", "--kubeconfig"])
        .arg(stack.cluster.kubeconfig())
        .kill_on_drop(true);
    let output = tokio::time::timeout(PATIENCE, command.output()).await??;
    let answer = serde_json::from_slice(&output.stdout);
    let answer = answer.with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
    Ok((output.status.code(), answer))
}

/// The grades that a check gave, about whom.
fn grades<'a>(answer: &'a Value, check: &str) -> Vec<(&'a str, &'a str)> {
    let all = answer["findings"].as_array().map_or(&[][..], Vec::as_slice);
    let of = all.iter().filter(|one| one["check"] == check);
    let text = |value: &'a Value| value.as_str().unwrap_or_default();
    of.map(|one| (text(&one["about"]), text(&one["grade"])))
        .collect()
}

/// Findings on the cluster as it is; the parts run, and not as pods.
pub(crate) async fn checks(stack: Arc<Stack>) -> Result<()> {
    let shape = Shape {
        gpus: 2,
        replicas: 10,
    };
    let nodes = [("doctor-1".to_owned(), shape)];
    let pool = Pool::open(&stack, "doctor", &nodes).await?;
    pool.create("holds", &[("gpumem", "1000")]).await?;
    pool.bound("holds").await?;
    let server = format!("http://{}", stack.address(Kind::Scheduler));
    let cluster = ["--scheduler", &server, "--namespace", "doctor"];

    let (code, answer) = doctor(&stack, &cluster).await?;
    for (check, grade) in [
        ("webhook", "ok"),
        ("webhook-answers", "ok"),
        // No pod of ours is there, but both answer.
        ("scheduler", "ok"),
        ("ledger", "ok"),
        ("webhook-pods", "ok"),
    ] {
        let found = grades(&answer, check);
        ensure!(
            found == [("cluster", grade)],
            "{check}: {found:?} of {answer}"
        );
    }
    for (check, grade) in [
        ("inventory", "ok"),
        ("other-plugin", "ok"),
        ("agent", "problem"),
    ] {
        let found = grades(&answer, check);
        ensure!(
            found.contains(&("doctor-1", grade)),
            "{check}: {found:?} of {answer}"
        );
    }
    ensure!(code == Some(1), "{code:?}");
    let (code, _) = doctor(
        &stack,
        &[&["--wait", "--timeout", "1"][..], &cluster].concat(),
    )
    .await?;
    ensure!(code == Some(1), "{code:?}");

    // The chart's policies are not installed here.
    let (code, answer) = doctor(&stack, &[&["--security"][..], &cluster].concat()).await?;
    ensure!(
        code == Some(1) && grades(&answer, "admission-policies") == [("cluster", "warning")],
        "{code:?}: {answer}"
    );

    // One node, without probes: no pod can run them here.
    let args = [&["node", "doctor-1", "--no-probe"][..], &cluster].concat();
    let (_, answer) = doctor(&stack, &args).await?;
    ensure!(
        grades(&answer, "library") == [("doctor-1", "not-checked")],
        "{answer}"
    );
    ensure!(
        grades(&answer, "inventory") == [("doctor-1", "ok")],
        "{answer}"
    );

    // A webhook that does not answer is found, and nothing stays of the trials.
    stack.terminate(Kind::Webhook).await?;
    let silent = doctor(&stack, &cluster).await;
    stack.start_webhook(&[]).await?;
    let (_, answer) = silent?;
    ensure!(
        grades(&answer, "webhook-answers") == [("cluster", "problem")],
        "{answer}"
    );
    let pods: Api<Pod> = Api::namespaced(stack.cluster.admin()?, "doctor");
    ensure!(
        pods.list_metadata(&ListParams::default())
            .await?
            .items
            .len()
            == 1
    );

    moves(&stack).await?;
    pool.close().await
}

/// A Deployment that means something else with Aliquot, and one that does not.
async fn moves(stack: &Stack) -> Result<()> {
    let deployments: Api<Deployment> = Api::namespaced(stack.cluster.admin()?, "doctor");
    for (name, limits) in [
        ("bare", json!({"nvidia.com/gpu": "1"})),
        (
            "same",
            json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"}),
        ),
    ] {
        let labels = json!({"app": name});
        let deployment = json!({
            "metadata": {"name": name},
            "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "main", "image": "x", "resources": {"limits": limits}}]},
            }},
        });
        let deployment = serde_json::from_value(deployment)?;
        deployments
            .create(&PostParams::default(), &deployment)
            .await?;
    }
    let args = ["preflight", "--from", "hami", "-n", "doctor"];
    let (_, answer) = report(stack, &args).await?;
    for (check, found) in [
        ("bare-count", ("Deployment doctor/bare", "warning")),
        ("unchanged", ("Deployment doctor/same", "ok")),
        ("kubernetes", ("cluster", "ok")),
        ("gpu-operator", ("cluster", "ok")),
        ("device-classes", ("cluster", "ok")),
        ("installed", ("cluster", "note")),
    ] {
        let all = grades(&answer, check);
        ensure!(all.contains(&found), "{check}: {answer}");
    }
    for name in ["bare", "same"] {
        deployments.delete(name, &DeleteParams::default()).await?;
    }
    Ok(())
}
