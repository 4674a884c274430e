//! Notes, an upgrade from an older release, and a rollback. There is no node, so none of the chart's pods
//! runs.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use aliquot_chart::{IMAGE, NAMESPACE, chart, release, top};
use aliquot_cluster::Cluster;
use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use crate::{ChartCluster, helm_on};

async fn argument(cluster: &Cluster, flag: &str) -> Result<String> {
    let get = [
        "get",
        "daemonset",
        "aliquot-device-plugin",
        "-n",
        NAMESPACE,
        "-o",
        "json",
    ];
    let object = cluster.kubectl(&get).await?.success()?;
    let object: serde_json::Value = serde_json::from_str(&object)?;
    let container = &object["spec"]["template"]["spec"]["containers"][0];
    let arguments = aliquot_chart::texts(&container["args"]);
    let found = arguments.iter().find_map(|one| one.strip_prefix(flag));
    Ok(found.unwrap_or_default().to_owned())
}

/// A copy of the chart in this directory, without one of its values, as an older release.
fn older(folder: &Path) -> Result<String> {
    let copied = Command::new("cp")
        .arg("-r")
        .arg(chart())
        .arg(folder)
        .status()?;
    ensure!(copied.success(), "cp: {copied}");
    let older = folder.join("aliquot");
    std::fs::remove_file(older.join("templates/cleanup.yaml"))?;
    let values = std::fs::read_to_string(older.join("values.yaml"))?;
    let (before, rest) = values.split_once("\ncleanup:\n").context("the value")?;
    let (_, after) = rest.split_once("\n\n").context("the value's end")?;
    std::fs::write(older.join("values.yaml"), format!("{before}\n\n{after}"))?;
    Ok(older.to_string_lossy().into_owned())
}

/// The flags with which docs/guides/upgrade.md upgrades.
fn documented() -> Result<Vec<String>> {
    let guide = std::fs::read_to_string(top("docs/guides/upgrade.md"))?;
    let begin = "helm upgrade aliquot charts/aliquot -n aliquot-system ";
    let mut lines = guide.lines();
    let flags = lines.find_map(|line| line.strip_prefix(begin));
    let flags = flags.context("the guide has the command")?.split(' ');
    Ok(flags.map(str::to_owned).collect())
}

/// The webhook writes its CAs: into its Secret, and their certificates into its configuration.
async fn certificates_written(cluster: &Cluster) -> Result<()> {
    let bundle = json!({"caBundle": "UEVN"});
    let webhooks = ["pods.aliquot.dev", "labelled.pods.aliquot.dev"];
    let webhooks = webhooks.map(|name| json!({"name": name, "clientConfig": bundle}));
    let configuration = json!({"webhooks": webhooks}).to_string();
    let secret = json!({"data": {"1.crt": "UEVN", "1.key": "UEVN"}}).to_string();
    let webhook = cluster.kubeconfig_for(NAMESPACE, "aliquot-webhook", None);
    let webhook = format!("--kubeconfig={}", webhook.await?.display());
    for (object, patch) in [
        (
            "mutatingwebhookconfiguration/aliquot-webhook",
            configuration,
        ),
        ("secret/aliquot-webhook-tls", secret),
    ] {
        let request = [&webhook, "patch", object, "-n", NAMESPACE, "-p", &patch];
        cluster.kubectl(&request).await?.success()?;
    }
    Ok(())
}

/// Both still have what the webhook wrote.
async fn certificates_stay(cluster: &Cluster, after: &str) -> Result<()> {
    for (object, path, expected) in [
        (
            "mutatingwebhookconfiguration/aliquot-webhook",
            "jsonpath={.webhooks[*].clientConfig.caBundle}",
            "UEVN UEVN",
        ),
        (
            "secret/aliquot-webhook-tls",
            "jsonpath={.data.1\\.crt} {.data.1\\.key}",
            "UEVN UEVN",
        ),
    ] {
        let get = ["get", object, "-n", NAMESPACE, "-o", path];
        let found = cluster.kubectl(&get).await?.success()?;
        ensure!(found == expected, "{object} after {after}: {found:?}");
    }
    Ok(())
}

pub(crate) async fn upgrades(on: Arc<ChartCluster>) -> Result<()> {
    let cluster = &on.cluster;
    let (chart, hami) = (chart(), top("tests/chart/values/hami.yaml"));
    // The administrator creates the namespace, with its Pod Security label.
    cluster.namespace(NAMESPACE).await?;
    let label = "pod-security.kubernetes.io/warn=restricted";
    let labelled = ["label", "namespace", NAMESPACE, label];
    cluster.kubectl(&labelled).await?.success()?;

    let dry = ["install", "aliquot", &chart, IMAGE, "--dry-run=server"];
    let dry = helm_on(cluster, &dry)?.success()?;
    let notes = format!(
        "Aliquot {} is installed in namespace {NAMESPACE}",
        release::version()?
    );
    ensure!(dry.contains(&notes), "no {notes:?}");
    ensure!(!dry.contains("HAMi's chart"), "nothing of HAMi's was set");
    // kube-scheduler is of the cluster's version.
    let version = ["version", "-o", "json"];
    let version = cluster.kubectl(&version).await?.success()?;
    let version: serde_json::Value = serde_json::from_str(&version)?;
    let version = version["serverVersion"]["gitVersion"].as_str();
    let version = version.and_then(|text| text.split(['-', '+']).next());
    let image = format!("kube-scheduler:{}", version.context("no version")?);
    ensure!(dry.contains(&image), "no {image}");
    let hami = hami.to_string_lossy();
    let with_hami = [
        "install",
        "aliquot",
        &chart,
        IMAGE,
        "--dry-run=server",
        "-f",
        &hami,
    ];
    let notes = helm_on(cluster, &with_hami)?.success()?;
    for line in [
        "  devicePlugin.pluginPath: used as devicePlugin.kubeletDir",
        "  devicePlugin.nodeConfiguration: set devicePlugin.profiles",
        "  scheduler.nodeLockExpire: nodes are not locked",
        "  mluResourceName: only NVIDIA GPUs are supported",
    ] {
        ensure!(notes.contains(line), "{line}: {notes}");
    }

    // An older release, with a value that the user set.
    let folder = tempfile::tempdir()?;
    let older = older(folder.path())?;
    let own = "--set=devicePlugin.deviceSplitCount=7";
    let installed = helm_on(cluster, &["install", "aliquot", &older, IMAGE, own])?;
    let warned = installed.err.matches("would violate PodSecurity").count();
    ensure!(
        warned == 2,
        "all but agent and monitor are restricted: {}",
        installed.err
    );
    installed.success()?;
    let scaling = "--device-memory-scaling=";
    ensure!(argument(cluster, scaling).await? == "1");
    certificates_written(cluster).await?;
    let set = "devicePlugin.deviceMemoryScaling=5";
    let mut upgrade = vec!["upgrade", "aliquot", &chart, "--set", set];
    let flags = documented()?;
    upgrade.extend(flags.iter().map(String::as_str));
    helm_on(cluster, &upgrade)?.success()?;
    ensure!(argument(cluster, scaling).await? == "5");
    ensure!(argument(cluster, "--device-split-count=").await? == "7");
    certificates_stay(cluster, "an upgrade").await?;
    // As tools apply the chart that do not upgrade with helm.
    let template = [
        "template",
        "aliquot",
        &chart,
        IMAGE,
        "-s",
        "templates/webhook-configuration.yaml",
    ];
    let objects = helm_on(cluster, &template)?.success()?;
    let file = folder.path().join("objects.yaml");
    std::fs::write(&file, objects)?;
    let file = file.to_string_lossy();
    let apply = ["apply", "--server-side", "--force-conflicts", "-f", &*file];
    cluster.kubectl(&apply).await?.success()?;
    certificates_stay(cluster, "a server-side apply").await?;
    helm_on(cluster, &["rollback", "aliquot", "1"])?.success()?;
    ensure!(argument(cluster, scaling).await? == "1");
    certificates_stay(cluster, "a rollback").await?;
    // There is no node for the job of the uninstallation; the scenario with a node runs it.
    helm_on(cluster, &["uninstall", "aliquot", "--no-hooks"])?.success()?;
    Ok(())
}
