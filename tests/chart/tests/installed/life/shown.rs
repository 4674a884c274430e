//! What a complete installation shows: the cluster page behind the API server's proxy, and
//! `kubectl aliquot` top, explain and doctor. `UPDATE=1` writes it to docs/screens.

use std::path::{Path, PathBuf};

use aliquot_chart::simulated_node::built;
use aliquot_chart::{NAMESPACE, top};
use aliquot_cluster::wait::{OrNotYet as _, eventually};
use aliquot_cluster::{not_yet, until};
use aliquot_page::browser::Browser;
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tokio::process::Command;

use super::kubectl;
use super::world::{NODE, PATIENCE, World};

/// An account that may only read the page.
const VIEWER: &str = "system:serviceaccount:default:viewer";
const READY: &str = "document.body?.dataset.ready === 'true'";

/// What a command printed, and its exit code.
struct CommandOutput {
    code: Option<i32>,
    text: String,
}

async fn aliquot(world: &World, args: &[&str]) -> Result<CommandOutput> {
    aliquot_as(&world.cluster.kubeconfig(), args).await
}

async fn aliquot_as(kubeconfig: &Path, args: &[&str]) -> Result<CommandOutput> {
    let program = built()?.join("kubectl-aliquot");
    let mut command = Command::new(program);
    command
        .args(args)
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .kill_on_drop(true);
    let output = tokio::time::timeout(PATIENCE, command.output()).await??;
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(error.is_empty(), "{args:?}: {error}");
    Ok(CommandOutput {
        code: output.status.code(),
        text: String::from_utf8(output.stdout)?,
    })
}

/// The output with this exit code; retried until then, because readiness probes lag.
pub(super) async fn output_of(world: &World, args: &[&str], code: i32) -> Result<String> {
    let what = format!("{args:?} to end with {code}");
    eventually(PATIENCE, &what, || async {
        let output = aliquot(world, args).await?;
        until!(
            output.code == Some(code),
            "{:?}: {}",
            output.code,
            output.text
        );
        Ok(Some(output.text))
    })
    .await
}

fn docs(name: &str) -> PathBuf {
    top("docs/screens").join(name)
}

/// Writes it for the documents with `UPDATE=1`.
fn screen(name: &str, blocks: &[(&str, &str)]) -> Result<()> {
    let all: Vec<String> = blocks
        .iter()
        .map(|(command, text)| format!("$ {command}\n{text}"))
        .collect();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(docs(name), all.join("\n"))?;
    }
    Ok(())
}

/// In namespace default, `waits` is refused for lack of memory, and `gpu-pod` runs.
pub(crate) async fn shown(world: &World, waits: &str) -> Result<()> {
    let nodes = output_of(world, &["top", "nodes"], 0).await?;
    let gpus = output_of(world, &["top", "gpus"], 0).await?;
    ensure!(nodes.contains("3000/162572"), "{nodes}");
    screen(
        "top.txt",
        &[
            ("kubectl aliquot top nodes", &nodes),
            ("kubectl aliquot top gpus", &gpus),
        ],
    )?;
    let why = output_of(world, &["explain", waits], 0).await?;
    ensure!(why.contains("CardInsufficientMemory"), "{why}");
    let asked = format!("kubectl aliquot explain {waits}");
    screen("explain.txt", &[(&asked, &why)])?;
    to_tenant(world, waits).await?;
    as_user(world, waits).await?;
    in_a_pod(world).await?;
    doctor(world).await?;
    page(world, waits).await
}

/// A tenant explains the pods that the tenant may get, with the own token, and no others.
async fn to_tenant(world: &World, waits: &str) -> Result<()> {
    for command in [
        "create serviceaccount tenant -n default".to_owned(),
        "create role tenant -n default --verb=get --resource=pods".to_owned(),
        "create rolebinding tenant -n default --role=tenant --serviceaccount=default:tenant"
            .to_owned(),
        format!(
            "create rolebinding tenant -n {NAMESPACE} --role=aliquot-tenant --serviceaccount=default:tenant"
        ),
    ] {
        kubectl(world, &command).await?;
    }
    let kubeconfig = world.cluster.kubeconfig_for("default", "tenant", None);
    let kubeconfig = kubeconfig.await?;
    let program = built()?.join("kubectl-aliquot");
    for (namespace, code, expected) in [
        ("default", 0, "CardInsufficientMemory"),
        ("kube-system", 1, "may not get /explain/kube-system/"),
    ] {
        let mut command = Command::new(&program);
        command
            .args(["explain", waits, "-n", namespace, "--kubeconfig"])
            .arg(&kubeconfig)
            .kill_on_drop(true);
        let output = tokio::time::timeout(PATIENCE, command.output()).await??;
        let text = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        let is_expected = text.concat().contains(expected);
        let is_expected = is_expected && output.status.code() == Some(code);
        ensure!(is_expected, "{namespace}: {output:?}");
    }
    kubectl(world, &format!("delete rolebinding tenant -n {NAMESPACE}")).await?;
    let rest = "delete serviceaccount/tenant role/tenant rolebinding/tenant -n default";
    kubectl(world, rest).await.map(drop)
}

/// A user with the rights that docs/guides/why-is-my-pod-pending.md names, and no more, is answered by the
/// scheduler.
async fn as_user(world: &World, waits: &str) -> Result<()> {
    for line in [
        "create serviceaccount user -n default",
        "create rolebinding user -n aliquot-system --role=aliquot-user --serviceaccount=default:user",
        "create role user -n default --verb=list --resource=pods",
        "create rolebinding user -n default --role=user --serviceaccount=default:user",
    ] {
        kubectl(world, line).await?;
    }
    let config = world.cluster.kubeconfig_for("default", "user", None);
    let config = config.await?;
    for (args, expected) in [
        (&["top", "nodes"][..], "3000/162572"),
        (
            &["explain", waits, "-n", "default"],
            "CardInsufficientMemory",
        ),
    ] {
        let output = aliquot_as(&config, args).await?;
        ensure!(
            output.code == Some(0) && output.text.contains(expected),
            "{args:?}: {:?} {}",
            output.code,
            output.text
        );
    }
    kubectl(world, "delete rolebinding user -n aliquot-system").await?;
    let rest = "delete serviceaccount/user role/user rolebinding/user -n default";
    kubectl(world, rest).await.map(drop)
}

/// In the agent's container, without a kubeconfig: by the pod's service account, in its namespace.
async fn in_a_pod(world: &World) -> Result<()> {
    let label = "app.kubernetes.io/component=device-plugin";
    let agents = world
        .json(&["get", "pods", "-n", NAMESPACE, "-l", label])
        .await?;
    let agent = agents["items"][0]["metadata"]["name"].as_str();
    let agent = agent.context("an agent")?;
    let words = ["kubectl-aliquot", "resize", "nobody", "--gpucores", "5"];
    let cluster = &world.cluster;
    let output = cluster
        .exec(NAMESPACE, agent, "device-plugin", &words)
        .await?;
    let refusal = format!("Error: cannot resize pod {NAMESPACE}/nobody: ");
    ensure!(
        output.code == Some(1)
            && output.stderr.contains(&refusal)
            && output.stderr.contains("pods \"nobody\""),
        "{output:?}"
    );
    Ok(())
}

/// The doctor's report of a single webhook replica. The endpoint that is removed also causes a finding for
/// a moment.
async fn reports_single_replica(world: &World) -> Result<String> {
    eventually(
        PATIENCE,
        "a finding about the single webhook replica",
        || async {
            let report = output_of(world, &["doctor"], 1).await?;
            let output = aliquot(world, &["doctor", "-o", "json"]).await?;
            let output: Value = serde_json::from_str(&output.text)?;
            let findings = output["findings"].as_array().context("findings")?;
            let bad: Vec<&Value> = findings.iter().filter(|one| one["grade"] != "ok").collect();
            let [one] = bad[..] else {
                not_yet!("{bad:?}");
            };
            let todo = one["do"].as_str().unwrap_or_default();
            until!(
                one["check"] == "webhook-pods" && todo.contains("webhook.replicas=2"),
                "{bad:?}"
            );
            Ok(Some(report))
        },
    )
    .await
}

/// Exit code 0 on this installation, with probe pods; and a problem is reported with what to do.
async fn doctor(world: &World) -> Result<()> {
    let well = output_of(world, &["doctor"], 0).await?;
    let node = output_of(world, &["doctor", "node", NODE, "-o", "wide"], 0).await?;
    for check in [
        "library",
        "share",
        "gpus-by-environment",
        "selinux",
        "overlay-redirect-dir",
        "fork-detection",
    ] {
        let line = node
            .lines()
            .find(|line| line.contains(&format!(" {check} ")));
        ensure!(line.is_some_and(|line| line.starts_with("ok ")), "{node}");
    }
    let probes = ["get", "pods", "-l", "app.kubernetes.io/name=aliquot-doctor"];
    eventually(PATIENCE, "no probe pod to be left", || async {
        let left = world.json(&probes).await?;
        let left = left["items"].as_array().context("a list")?.len();
        until!(left == 0, "{left} pods");
        Ok(Some(()))
    })
    .await?;

    let scale = format!("-n {NAMESPACE} scale deployment aliquot-webhook --replicas=");
    kubectl(world, &format!("{scale}1")).await?;
    let report = reports_single_replica(world).await;
    kubectl(world, &format!("{scale}2")).await?;
    world.parts_ready().await?;
    let report = report?;

    let command = format!("kubectl {scale}1");
    screen(
        "doctor.txt",
        &[
            ("kubectl aliquot doctor", &well),
            (
                &format!("kubectl aliquot doctor node {NODE} -o wide"),
                &node,
            ),
            (&command, "deployment.apps/aliquot-webhook scaled\n"),
            ("kubectl aliquot doctor", &report),
        ],
    )
}

/// In a real browser, through `kubectl proxy`, with only `get` on pods/proxy and a token of `aliquot-viewer`.
async fn page(world: &World, waits: &str) -> Result<()> {
    let of = ["get", "lease", "aliquot-scheduler", "-n", NAMESPACE];
    let lease = world.json(&of).await?;
    let holder = lease["spec"]["holderIdentity"]
        .as_str()
        .context("nobody leads")?;
    let pod = holder.rsplit_once('_').context(holder.to_owned())?.0;
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/https:{pod}:9395/proxy/page/");

    let state = format!("{path}state");
    let get = async |who: &str| {
        let asks = ["get", "--raw", &state, &format!("--as={who}")];
        world.cluster.kubectl(&asks).await
    };
    for nobody in ["system:anonymous", VIEWER] {
        let refused = get(nobody).await?;
        ensure!(
            refused.code != Some(0)
                && refused
                    .stderr
                    .contains("cannot get resource \"pods/proxy\""),
            "{nobody}: {refused:?}"
        );
    }
    let role = format!("create role viewer -n {NAMESPACE} --verb=get --resource=pods/proxy");
    let binding = format!(
        "create rolebinding viewer -n {NAMESPACE} --role=viewer --serviceaccount=default:viewer"
    );
    for line in [role, binding] {
        kubectl(world, &line).await?;
    }

    let address = world.cluster.part_address(9);
    let program = world.cluster.binaries().join("kubebox");
    let config = format!("--kubeconfig={}", world.cluster.kubeconfig().display());
    let (port, who) = (
        format!("--port={}", address.port()),
        format!("--as={VIEWER}"),
    );
    let proxy = ["kubectl", "proxy", &config, &port, &who];
    let proxy = world
        .cluster
        .start_part("kubectl-proxy", &program, &proxy, &[])?;
    eventually(PATIENCE, "kubectl proxy to listen", || async {
        proxy.check()?;
        Ok(Some(
            tokio::net::TcpStream::connect(address).await.or_not_yet()?,
        ))
    })
    .await?;
    // The right to the proxy is not enough: the page's data requires a token.
    let refused = get(VIEWER).await?;
    ensure!(refused.code != Some(0), "{refused:?}");
    let token = format!("create token aliquot-viewer -n {NAMESPACE}");
    let token = kubectl(world, &token).await?;
    let url = format!("http://{address}{path}#token={}", token.trim());
    let seen = seen(&url, waits).await;
    proxy.kill().await?;
    let rest = format!("delete role/viewer rolebinding/viewer -n {NAMESPACE}");
    kubectl(world, &rest).await?;
    seen
}

async fn seen(url: &str, waits: &str) -> Result<()> {
    let mut browser = Browser::start(1200, 560).await?;
    browser.open(url).await?;
    browser.until(READY).await?;
    let text = async |browser: &mut Browser, of: &str| {
        let of = format!("document.querySelector('{of}').textContent");
        let value = browser.value(&of).await?;
        anyhow::Ok(value.as_str().unwrap_or_default().to_owned())
    };
    let sums = text(&mut browser, "#sums").await?;
    ensure!(
        sums.starts_with("1 node, 2 GPUs") && sums.contains("1 pod pending"),
        "{sums}"
    );
    let pending = text(&mut browser, "#waiting tbody").await?;
    ensure!(
        pending.contains(&format!("default/{waits}"))
            && pending.contains("with too little memory free"),
        "{pending}"
    );
    let share = "document.querySelector('.share').getAttribute('aria-label')";
    let share = browser.value(share).await?;
    let share = share.as_str().unwrap_or_default();
    ensure!(
        share.contains("gpu-pod") && share.contains("3000 of 81286 MiB"),
        "{share}"
    );
    // What is used, which the scheduler asks the node's monitor for.
    let used = r"/; used: \d+ of 3000 MiB/.test(document.querySelector('.share').ariaLabel)";
    browser.until(used).await?;
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(docs("cluster-page-installed.png"), browser.picture().await?)?;
    }
    // The opened share's last hour, of which the monitor has a point every half minute.
    let hour = "!document.querySelector('#share figure').hidden \
        || (Date.now() - (window.opened ?? 0) > 1000 \
            && (window.opened = Date.now(), document.querySelector('.share').click()), false)";
    browser.until(hour).await?;
    browser.stop().await
}
